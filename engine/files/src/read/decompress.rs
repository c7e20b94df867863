//! Decompresses zstd and LZ4, frame by frame.
//!
//! Sources: RFC 8878 and the LZ4 frame format, version 1.6.4. Both are sequences of frames, with skippable frames in
//! between, and share the magic numbers of the latter.
//!
//! Invariants: memory is bounded by what a frame's header may ask for: 8 MiB for LZ4's blocks, 128 MiB for zstd's window
//! ([`zstd_safe`]'s limit). No input panics. A frame that the file's end cuts off is an error, and so is one whose
//! checksum does not match; the content of the frames before it has been given by then.

use super::input::Input;
use lz4_flex::frame::FrameDecoder;
use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use zstd_safe::{DCtx, InBuffer, OutBuffer};

const LZ4: u32 = 0x184d_2204;
const ZSTD: u32 = 0xfd2f_b528;
/// Sixteen magics that differ in their last four bits.
const SKIPPABLE: u32 = 0x184d_2a50;

/// Whether a file that begins with these bytes is for [`Decompressor`].
pub(super) fn is_compressed(start: &[u8]) -> bool {
    start
        .first_chunk()
        .map(|magic| u32::from_le_bytes(*magic))
        .is_some_and(|magic| matches!(magic, LZ4 | ZSTD))
}

/// Where the frames read so far end, each as an offset in the file and one in the content. The reader of the content
/// takes them from here as it goes on.
#[derive(Clone, Debug, Default)]
pub struct FrameEnds(Arc<Mutex<VecDeque<(u64, u64)>>>);

impl FrameEnds {
    fn list(&self) -> MutexGuard<'_, VecDeque<(u64, u64)>> {
        // One side appends, the other takes: nothing is ever half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next frame that ends at `place` of the content or before it. The ends of all frames before a byte that
    /// was read are here.
    #[must_use]
    pub fn up_to(&self, place: u64) -> Option<(u64, u64)> {
        let mut list = self.list();
        let (_, end) = *list.front()?;
        if end <= place { list.pop_front() } else { None }
    }
}

/// Bytes of a compressed file up to the end of its first frame that has any content.
///
/// # Errors
/// The file is neither zstd nor LZ4, or is damaged there.
pub fn first_frame_len(file: impl Read) -> io::Result<u64> {
    let ends = FrameEnds::default();
    let unpacked = Decompressor::new(file).ok_or(ErrorKind::InvalidData)?;
    let mut unpacked = unpacked.noting(ends.clone());
    let mut piece = [0; 4096];
    loop {
        let got = unpacked.read(&mut piece)?;
        while let Some((end, content)) = ends.up_to(u64::MAX) {
            if content > 0 {
                return Ok(end);
            }
        }
        if got == 0 {
            return Ok(unpacked.sound_end().0);
        }
    }
}

/// Reads the content of a compressed file.
pub struct Decompressor<R: Read> {
    codec: Codec<R>,
    frame_ends: Option<FrameEnds>,
    within: bool,
    /// Bytes given so far.
    given: u64,
    /// Where the last whole frame ends: in the file, and in its content.
    sound: (u64, u64),
}

enum Codec<R: Read> {
    Lz4(Box<FrameDecoder<Input<R>>>),
    Zstd(Box<(DCtx<'static>, Input<R>)>),
}

impl<R: Read> Decompressor<R> {
    /// Decompresses a source by its first bytes; `None`: it is neither zstd nor LZ4.
    pub fn new(source: R) -> Option<Self> {
        let mut input = Input::new(source);
        let magic = input.magic().ok()??;
        let codec = match magic {
            LZ4 => Codec::Lz4(Box::new(FrameDecoder::new(input))),
            ZSTD => Codec::Zstd(Box::new((DCtx::try_create()?, input))),
            _ => return None,
        };
        Some(Self {
            codec,
            frame_ends: None,
            within: false,
            given: 0,
            sound: (0, 0),
        })
    }

    /// Notes in `frame_ends` where frames end.
    #[must_use]
    pub fn noting(self, frame_ends: FrameEnds) -> Self {
        Self {
            frame_ends: Some(frame_ends),
            ..self
        }
    }

    /// Where the last whole frame ends that was read: in the file, and in its content.
    #[must_use]
    pub fn sound_end(&self) -> (u64, u64) {
        self.sound
    }

    fn input(&mut self) -> &mut Input<R> {
        match &mut self.codec {
            Codec::Lz4(decoder) => decoder.get_mut(),
            Codec::Zstd(both) => &mut both.1,
        }
    }

    fn damaged(&self, problem: impl std::fmt::Display, kind: ErrorKind) -> io::Error {
        let at = self.sound.0;
        io::Error::new(
            kind,
            format!("the compressed frame at byte {at}: {problem}"),
        )
    }

    /// Goes on to the next frame; `false`: the file ends here.
    fn begin(&mut self) -> io::Result<bool> {
        let mine = match self.codec {
            Codec::Lz4(_) => LZ4,
            Codec::Zstd(_) => ZSTD,
        };
        loop {
            let (_, given) = self.sound;
            let input = self.input();
            match input.magic()? {
                None if input.is_at_end()? => return Ok(false),
                Some(magic) if magic == mine => return Ok(true),
                Some(magic) if magic & !0xf == SKIPPABLE => {
                    if !input.skip_frame()? {
                        return Err(
                            self.damaged("the file ends within it", ErrorKind::UnexpectedEof)
                        );
                    }
                    self.sound = (self.input().offset, given);
                }
                _ => {
                    return Err(
                        self.damaged("another kind of data begins here", ErrorKind::InvalidData)
                    );
                }
            }
        }
    }

    /// Some bytes of the frame; 0: it ends here.
    fn some(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.codec {
            Codec::Lz4(decoder) => match decoder.read(out) {
                // The decoder takes a file's end for a frame's.
                Ok(0) if decoder.get_ref().ended => Err(ErrorKind::UnexpectedEof.into()),
                other => other,
            },
            Codec::Zstd(both) => {
                let (context, input) = &mut **both;
                loop {
                    let bytes = input.fill()?;
                    if bytes.is_empty() {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    let mut from = InBuffer::around(bytes);
                    let mut to = OutBuffer::around(&mut *out);
                    let left = context
                        .decompress_stream(&mut to, &mut from)
                        .map_err(|e| io::Error::other(zstd_safe::get_error_name(e)))?;
                    let (taken, got) = (from.pos(), to.pos());
                    input.consume(taken);
                    if left == 0 {
                        self.within = false;
                    }
                    if got > 0 || left == 0 {
                        return Ok(got);
                    }
                }
            }
        }
    }
}

impl<R: Read> Read for Decompressor<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.within {
                if !self.begin()? {
                    return Ok(0);
                }
                self.within = true;
            }
            let got = self.some(out).map_err(|e| match e.kind() {
                ErrorKind::Interrupted => e,
                // The system's own error: the source failed, whatever its content.
                _ if e.raw_os_error().is_some() => e,
                ErrorKind::UnexpectedEof => self.damaged("the file ends within it", e.kind()),
                _ => self.damaged(&e, ErrorKind::InvalidData),
            })?;
            self.given += got as u64;
            // LZ4 ends a frame with a read of nothing, zstd with its last bytes.
            if got == 0 || !self.within {
                self.within = false;
                self.sound = (self.input().offset, self.given);
                if let Some(ends) = &self.frame_ends {
                    ends.list().push_back(self.sound);
                }
            }
            if got > 0 {
                return Ok(got);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn lz4(raw: &[u8]) -> Vec<u8> {
        let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(
            lz4_flex::frame::FrameInfo::new().content_checksum(true),
            Vec::new(),
        );
        encoder.write_all(raw).expect("packs");
        encoder.finish().expect("packs")
    }

    fn zstd(raw: &[u8]) -> Vec<u8> {
        let mut context = zstd_safe::CCtx::create();
        context
            .set_parameter(zstd_safe::CParameter::ChecksumFlag(true))
            .expect("set");
        let mut out = vec![0; zstd_safe::compress_bound(raw.len())];
        let len = context.compress2(&mut out[..], raw).expect("packs");
        out.truncate(len);
        out
    }

    fn skippable(len: u32) -> Vec<u8> {
        let mut out = 0x184d_2a53u32.to_le_bytes().to_vec();
        out.extend(len.to_le_bytes());
        out.resize(8 + len as usize, 0);
        out
    }

    fn unpack(file: &[u8]) -> (Vec<u8>, (u64, u64), Option<io::Error>) {
        let mut unpacked = Decompressor::new(file).expect("known");
        let mut out = Vec::new();
        let mut piece = [0; 777];
        loop {
            match unpacked.read(&mut piece) {
                Ok(0) => return (out, unpacked.sound_end(), None),
                Ok(n) => out.extend(&piece[..n]),
                Err(e) => return (out, unpacked.sound_end(), Some(e)),
            }
        }
    }

    #[test]
    fn every_cut_gives_the_whole_frames_before_it() {
        let texts: Vec<Vec<u8>> = [300u32, 0, 5000, 40]
            .iter()
            .map(|n| (0..*n).map(|i| (i * i % 251) as u8).collect())
            .collect();
        for pack in [lz4 as fn(&[u8]) -> Vec<u8>, zstd] {
            // Ends of whole frames: in the file, and in what is in it.
            let (mut file, mut raw, mut ends) = (Vec::new(), Vec::new(), vec![(0, 0)]);
            for text in &texts {
                file.extend(pack(text));
                raw.extend(text);
                ends.push((file.len() as u64, raw.len() as u64));
                file.extend(skippable(100));
                ends.push((file.len() as u64, raw.len() as u64));
            }
            for cut in 4..=file.len() {
                let (got, sound, e) = unpack(&file[..cut]);
                let want = *ends.iter().rfind(|end| end.0 <= cut as u64).expect("one");
                assert_eq!(sound, want, "{cut}");
                assert_eq!(e.is_some(), sound.0 != cut as u64, "{cut}: {e:?}");
                assert!(raw.starts_with(&got) && got.len() as u64 >= sound.1);
                assert!(e.is_none_or(|e| e.to_string().contains(&format!("byte {}", sound.0))));
            }
            // Zeros, and what is no frame.
            for tail in [[0u8; 5000], [7; 5000]] {
                let (got, sound, e) = unpack(&[&file[..], &tail].concat());
                assert_eq!(sound, *ends.last().expect("one"));
                assert!(
                    got == raw
                        && e.is_some_and(|e| e
                            .to_string()
                            .contains("another kind of data begins here"))
                );
            }
            // A bit that fell over.
            let at = usize::try_from(ends[4].0 + 200).expect("small");
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            let (_, sound, e) = unpack(&damaged);
            assert!(e.is_some() && sound == ends[4], "{sound:?} {ends:?}");
        }
    }

    #[test]
    fn seams_are_told_before_what_is_behind_them() {
        for pack in [lz4 as fn(&[u8]) -> Vec<u8>, zstd] {
            let (first, second) = (pack(&[1; 1000]), pack(&[2; 500]));
            let file = [&first[..], &skippable(100), &second].concat();
            let ends = [first.len() as u64, file.len() as u64];
            assert_eq!(first_frame_len(&file[..]).expect("reads"), ends[0]);
            let noted = FrameEnds::default();
            let mut unpacked = Decompressor::new(&file[..])
                .expect("known")
                .noting(noted.clone());
            let mut byte = [0];
            for place in 0..1500 {
                assert_eq!(unpacked.read(&mut byte).expect("reads"), 1);
                let seam = noted.up_to(place);
                assert_eq!(seam, (place == 1000).then_some((ends[0], 1000)));
            }
            assert_eq!(unpacked.read(&mut byte).expect("ends"), 0);
            assert_eq!(noted.up_to(1500), Some((ends[1], 1500)));
            assert_eq!(noted.up_to(u64::MAX), None);
        }
    }

    #[test]
    fn a_drip_is_read_as_a_stream_is() {
        struct Drip<'a>(&'a [u8]);
        impl Read for Drip<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                let n = out.len().min(1);
                self.0.read(&mut out[..n])
            }
        }
        let raw: Vec<u8> = (0..3000u32).map(|i| (i % 7) as u8).collect();
        for file in [lz4(&raw), zstd(&raw)] {
            let file = [&file[..], &skippable(0), &file].concat();
            let mut got = Vec::new();
            Decompressor::new(Drip(&file))
                .expect("known")
                .read_to_end(&mut got)
                .expect("reads");
            assert_eq!(got, [&raw[..], &raw].concat());
        }
    }

    #[test]
    fn other_files_are_not_taken() {
        for start in [&b""[..], b"abc", b"\x0a\x0d\x0d\x0a", b"\x1f\x8b\x08\x00"] {
            assert!(Decompressor::new(start).is_none() && !is_compressed(start));
        }
        assert!(is_compressed(&lz4(b"x")) && is_compressed(&zstd(b"x")));
    }
}
