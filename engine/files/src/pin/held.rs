//! Evaluation of pins, which protect capture files of a time range from deletion: finds the
//! finished files that each pin protects.

use super::Pins;
use crate::{
    extract::times::{Beginning, may_hold, reaches},
    index::{FlowTerms, IndexFolder},
    read::{FileRanges, ReadError},
    sealed::SecretKey,
};
use std::{
    collections::HashMap,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Identity of a capture file: name, length, and time of the last write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    path: PathBuf,
    len: u64,
    written: (i64, i64),
}

/// Cached facts of a capture file, for the evaluation of pins (protection from deletion).
#[derive(Clone, Debug)]
struct CachedFile {
    begins: Beginning,
    /// Hash of a set of pins, which protect capture files from deletion, and the positions in it of
    /// the pins that protect the file, as the file's index showed.
    said: Option<(u64, Vec<usize>)>,
}

/// Finished capture file, and the pins that protect it from deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldFile {
    /// Positions in [`Pins::sound`] of the pins that protect the capture file.
    pub by: Vec<usize>,
    /// `true` if the evaluation of pins used the file's index.
    pub indexed: bool,
    /// `true` if the folder has invalid pins, which protect every file.
    pub by_unsound: bool,
}

impl HeldFile {
    /// Returns `true` if any pin protects the capture file from deletion.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.by_unsound || !self.by.is_empty()
    }
}

/// Evaluator of pins, which protect capture files from deletion. It caches the facts read from each
/// finished file, which does not change.
#[derive(Clone, Debug, Default)]
pub struct PinEvaluator {
    known: HashMap<FileKey, CachedFile>,
    /// Key that opens the folder's sealed (encrypted) files.
    key: Option<SecretKey>,
}

impl PinEvaluator {
    /// Creates an evaluator with an empty cache. Without the key of sealed (encrypted) files, pins
    /// protect those without an index whatever their times are.
    #[must_use]
    pub fn new(key: Option<SecretKey>) -> Self {
        Self {
            known: HashMap::new(),
            key,
        }
    }

    /// Returns for each of a folder's finished capture files the pins that protect it from
    /// deletion.
    pub fn evaluate(
        &mut self,
        files: &[&Path],
        pins: &Pins,
        indexes: Option<IndexFolder<'_>>,
    ) -> Vec<HeldFile> {
        let by_unsound = !pins.unsound.is_empty();
        if pins.sound.is_empty() {
            self.known.clear();
            let each = HeldFile {
                by_unsound,
                ..HeldFile::default()
            };
            return vec![each; files.len()];
        }
        let keys: Vec<_> = files.iter().map(|path| key(path)).collect();
        let begins = self.begins(&keys);
        let mut hasher = DefaultHasher::new();
        let terms = pins.sound.iter().map(|(id, pin)| {
            (id, pin.times(), &pin.filter).hash(&mut hasher);
            FlowTerms::parse(&pin.filter)
        });
        let terms: Vec<_> = terms.collect();
        let hash = hasher.finish();
        let file = |(key, reach): (&FileKey, _)| {
            let of_times = pins.sound.iter().enumerate();
            let of_times = of_times.filter(|(_, (_, pin))| may_hold(&reach, &pin.times()));
            let of_times: Vec<_> = of_times.map(|(i, _)| i).collect();
            let mut it = HeldFile {
                by: of_times,
                indexed: false,
                by_unsound,
            };
            let Some(indexes) = indexes.filter(|_| !it.by.is_empty()) else {
                return it;
            };
            let known = self.known.get_mut(key);
            let said = known.as_ref().and_then(|it| it.said.clone());
            if let Some((_, by)) = said.filter(|(of, _)| *of == hash) {
                it.by.retain(|i| by.contains(i));
                it.indexed = true;
            } else if let Some(index) = indexes.load(&key.path) {
                let holds = |i: usize| {
                    let times = pins.sound[i].1.times();
                    !index.select(&times, &terms[i]).is_empty()
                };
                it.by.retain(|i| holds(*i));
                it.indexed = true;
                if let Some(known) = known {
                    // The index excludes all other pins.
                    known.said = Some((hash, it.by.clone()));
                }
            }
            it
        };
        keys.iter().zip(reaches(&begins)).map(file).collect()
    }

    /// Returns the timestamps of the first records and the chain key of each capture file. Cached
    /// facts of all other files are dropped.
    fn begins(&mut self, keys: &[FileKey]) -> Vec<Beginning> {
        let mut before = std::mem::take(&mut self.known);
        let begins = keys.iter().map(|key| {
            let known = match before.remove(key) {
                Some(known) => known,
                None => match self.beginning(&key.path) {
                    Ok(begins) => CachedFile { begins, said: None },
                    // An unreadable file may hold any frame; reading it is tried again the next
                    // time.
                    Err(_) => return Beginning::default(),
                },
            };
            let begins = known.begins;
            self.known.insert(key.clone(), known);
            begins
        });
        begins.collect()
    }

    fn beginning(&self, path: &Path) -> Result<Beginning, ReadError> {
        Beginning::read(&FileRanges::whole(path.to_owned()).with_key(self.key.clone()))
    }
}

/// Returns the identity of a capture file; for a missing file one that no file has.
fn key(path: &Path) -> FileKey {
    let metadata = fs::symlink_metadata(path);
    let (len, written) = metadata.map_or((u64::MAX, (0, 0)), |it| {
        (it.len(), (it.mtime(), it.mtime_nsec()))
    });
    FileKey {
        path: path.to_owned(),
        len,
        written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::written,
        format::{FileFormat, pcap},
        pin::{Pin, PinProblem, UnsoundPin},
    };
    use std::time::{Duration, SystemTime};

    const SECOND: u64 = 1_000_000_000;

    fn pins(all: &[(u64, u64, &str)]) -> Pins {
        let sound = all.iter().enumerate().map(|(i, (from, to, filter))| {
            let pin = Pin {
                from_ns: from * SECOND,
                to_ns: to * SECOND,
                filter: (*filter).into(),
                reason: "x".into(),
                made_ns: 0,
            };
            (i.to_string(), pin)
        });
        Pins {
            sound: sound.collect(),
            ..Pins::default()
        }
    }

    /// Writes three capture files of one queue with a frame at each of these seconds. All frames
    /// are UDP port 53, except ARP at second 20.
    fn files(dir: &Path) -> Vec<PathBuf> {
        let file = |seconds: &[u64]| {
            let mut bytes = pcap::encode_header(65_535, 1, None).to_vec();
            for second in seconds {
                let mut frame = vec![0; 42];
                match second {
                    20 => frame[12..14].copy_from_slice(&[8, 6]),
                    _ => {
                        frame[12..14].copy_from_slice(&[8, 0]);
                        frame[14] = 0x45;
                        frame[17] = 28;
                        frame[23] = 17;
                        frame[37] = 53;
                        frame[39] = 8;
                    }
                }
                bytes.extend(pcap::encode_record_header(second * SECOND, 42, 42));
                bytes.extend(frame);
            }
            let path = dir.join(format!("wqcap-q00-{}.pcap", seconds[0] * SECOND));
            fs::write(&path, bytes).expect("written");
            let last = seconds.last().expect("records");
            let written = SystemTime::UNIX_EPOCH + Duration::from_secs(*last);
            let file = fs::File::options().append(true).open(&path).expect("there");
            file.set_modified(written).expect("the time is set");
            path
        };
        [&[10, 15][..], &[20], &[30, 35]].map(file).to_vec()
    }

    fn held(
        holder: &mut PinEvaluator,
        files: &[PathBuf],
        pins: &Pins,
        index: Option<IndexFolder<'_>>,
    ) -> Vec<Vec<usize>> {
        let files: Vec<_> = files.iter().map(PathBuf::as_path).collect();
        let all = holder.evaluate(&files, pins, index);
        all.into_iter().map(|it| it.by).collect()
    }

    #[test]
    fn first_records_decide_which_files_times_hold() {
        let dir = tempfile::tempdir().expect("dir");
        let files = files(dir.path());
        let mut holder = PinEvaluator::default();
        let of = |holder: &mut PinEvaluator, pin| held(holder, &files, &pins(&[pin]), None);
        let none: [&[usize]; 3] = [&[], &[], &[]];
        assert_eq!(of(&mut holder, (1, 5, "")), none);
        assert_eq!(of(&mut holder, (12, 13, "")), [&[0][..], &[], &[]]);
        assert_eq!(of(&mut holder, (20, 21, "")), [&[0][..], &[0], &[]]);
        // The end of the last file is unknown.
        assert_eq!(of(&mut holder, (100, 200, "")), [&[][..], &[], &[0]]);
        // Without an index the filter has no effect.
        assert_eq!(of(&mut holder, (25, 26, "arp")), [&[][..], &[0], &[]]);
        let two = pins(&[(1, 5, ""), (12, 300, "")]);
        assert_eq!(
            held(&mut holder, &files, &two, None),
            [&[1][..], &[1], &[1]]
        );
        let unsound = Pins {
            unsound: vec![UnsoundPin {
                path: "x".into(),
                problem: PinProblem::FileLength,
            }],
            ..Pins::default()
        };
        let paths: Vec<_> = files.iter().map(PathBuf::as_path).collect();
        let all = holder.evaluate(&paths, &unsound, None);
        assert!(all.iter().all(HeldFile::is_held));
    }

    #[test]
    fn an_index_narrows_by_time_and_filter_once_it_exists() {
        let dir = tempfile::tempdir().expect("dir");
        let index = tempfile::tempdir().expect("dir");
        let indexes = IndexFolder {
            folder: index.path(),
            dir: dir.path(),
        };
        let files = files(dir.path());
        let mut holder = PinEvaluator::default();
        let arp = pins(&[(9, 100, "arp"), (16, 29, "")]);
        assert_eq!(
            held(&mut holder, &files, &arp, Some(indexes)),
            [&[0, 1][..], &[0, 1], &[0]],
            "without an index"
        );
        for file in &files {
            let built = indexes.build(file, None, || true);
            assert!(built.expect("builds").is_some());
        }
        let narrowed = [&[][..], &[0, 1], &[]];
        for _ in 0..2 {
            assert_eq!(held(&mut holder, &files, &arp, Some(indexes)), narrowed);
        }
        // The result is cached, so the index is not needed any more.
        fs::remove_file(indexes.path_of(&files[0])).expect("there");
        assert_eq!(held(&mut holder, &files, &arp, Some(indexes)), narrowed);
        let others = pins(&[(9, 100, "udp port 53")]);
        assert_eq!(
            held(&mut holder, &files, &others, Some(indexes)),
            [&[0][..], &[], &[0]]
        );
        // A filter that no index can evaluate.
        let any = pins(&[(9, 100, "tcp[13] = 2")]);
        assert_eq!(
            held(&mut holder, &files, &any, Some(indexes)),
            [&[0][..], &[0], &[0]]
        );
    }

    #[test]
    fn unreadable_files_are_held() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("wqcap-q00-1.pcap");
        fs::write(&path, "no capture").expect("written");
        let (sound, _) = written(FileFormat::Pcapng, 3);
        let far = dir.path().join("wqcap-q01-1.pcapng");
        fs::write(&far, sound).expect("written");
        let mut holder = PinEvaluator::default();
        let late = pins(&[(1000, 2000, "")]);
        let paths = [path, far];
        assert_eq!(held(&mut holder, &paths, &late, None), [[0], [0]]);
        fs::remove_file(&paths[0]).expect("there");
        assert_eq!(held(&mut holder, &paths, &late, None), [[0], [0]]);
    }
}
