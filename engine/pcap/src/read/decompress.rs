//! Decompression of gzip, zstd and LZ4 files, frame by frame.
//!
//! Sources: RFC 1952 (gzip), RFC 8878 (zstd) and the LZ4 frame format, version 1.6.4. The formats
//! are sequences of compressed frames, which gzip calls members. zstd and LZ4 have optional
//! skippable frames between them, with the same magic numbers in both.
//!
//! Invariants: memory is bounded by the maximum that a frame header can request: 32 KiB for gzip,
//! 12 MiB for LZ4 blocks, 128 MiB for the zstd window (limit of [`zstd_safe`]); and for all files
//! that are open together by [`super::budget`]. No input causes a panic. A truncated frame or a
//! frame with a wrong checksum is an error, after the content of the frames before it has been
//! returned.

use super::{
    budget::{FileMemory, MemoryUse, lz4_blocks, zstd_window},
    gzip::GzipMember,
    window::Window,
};
use crate::format::ByteOrder;
use lz4_flex::frame::FrameDecoder;
use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read},
    mem,
};
use zstd_safe::{DCtx, InBuffer, OutBuffer};

/// Magic number of an LZ4 frame.
const LZ4: u32 = 0x184d_2204;
/// Magic number of a zstd frame.
const ZSTD: u32 = 0xfd2f_b528;
/// First of 16 magic numbers of skippable zstd or LZ4 frames, which differ in the last four bits.
const SKIPPABLE: u32 = 0x184d_2a50;
/// Length in bytes of the header of a skippable frame: magic number and length of the content.
const SKIPPABLE_HEADER: usize = 8;
/// Maximum length in bytes of the header of a zstd frame.
const ZSTD_HEADER: usize = 18;
/// Length in bytes of the header of an LZ4 frame up to the size of its blocks.
const LZ4_DESCRIPTOR: usize = 6;
/// Maximum zstd window in bytes that a decoder of [`zstd_safe`] accepts
/// (`ZSTD_WINDOWLOG_LIMIT_DEFAULT`).
const MOST_WINDOW: u64 = 1 << 27;
/// Size in bytes of the decompressor's buffer for compressed input.
const PIECE: usize = 64 << 10;

/// First three bytes of a gzip member with the only method that is defined, deflate.
const GZIP: u32 = 0x08_8b1f;
/// Mask of the first three bytes of a file in its first word.
const THREE_BYTES: u32 = 0xff_ffff;

/// Reader of the content of a capture file, compressed or not.
pub struct Decompressor<R: Read> {
    /// Decoder for the compression format of the file.
    codec: Codec<R>,
    /// Ends of compressed frames that have not been taken, as offsets in the file and in the
    /// content; `None`: they are not recorded.
    frame_ends: Option<VecDeque<(u64, u64)>>,
    /// Set while the decompressor's position is inside a compressed frame.
    in_frame: bool,
    /// Number of content bytes that the decompressor has returned so far.
    produced: u64,
    /// End of the last complete compressed frame, as offsets in the file and in the content.
    sound: (u64, u64),
    /// Flags and block size of the last LZ4 frame's header.
    lz4_form: Option<[u8; 2]>,
    /// Memory of the decoder.
    memory: FileMemory,
}

/// Source of a decompressor's bytes; `None` in a decoder that another one has replaced.
struct Source<R>(Option<R>);

impl<R: Read> Read for Source<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.as_mut().map_or(Ok(0), |it| it.read(out))
    }
}

/// Window over the compressed bytes of a file.
type Input<R> = Window<Source<R>>;

/// Decoder of a compression format with its input.
enum Codec<R: Read> {
    /// No decoder: the file is not compressed.
    Plain(Input<R>),
    /// LZ4 decoder with its input.
    Lz4(Box<FrameDecoder<Input<R>>>),
    /// gzip decoder with its input.
    Gzip(Box<(GzipMember, Input<R>)>),
    /// zstd decoder with its input.
    Zstd(Box<(DCtx<'static>, Input<R>)>),
}

impl<R: Read> Decompressor<R> {
    /// Reads the first bytes of a file and selects the decoder by its magic number. Skippable frames
    /// at the start, as `pzstd` writes them, are passed over.
    ///
    /// # Errors
    /// The source fails, memory is exhausted, or no compressed frame follows a skippable one.
    pub fn new(source: R) -> io::Result<Self> {
        let mut input = Window::new(Source(Some(source)), SKIPPABLE_HEADER);
        let mut start = magic(&mut input)?;
        while start.is_some_and(is_skippable) && skip_frame(&mut input)? {
            start = magic(&mut input)?;
        }
        let skipped = input.offset();
        let codec = match start {
            Some(LZ4) => {
                input.grow(PIECE);
                Codec::Lz4(Box::new(FrameDecoder::new(input)))
            }
            Some(ZSTD) => {
                input.grow(PIECE);
                let context = DCtx::try_create().ok_or(ErrorKind::OutOfMemory)?;
                Codec::Zstd(Box::new((context, input)))
            }
            Some(start) if start & THREE_BYTES == GZIP => {
                input.grow(PIECE);
                Codec::Gzip(Box::new((GzipMember::new(), input)))
            }
            _ if skipped > 0 => {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    format!(
                        "no zstd or LZ4 frame follows the skippable frame before byte {skipped}"
                    ),
                ));
            }
            _ => Codec::Plain(input),
        };
        Ok(Self {
            codec,
            frame_ends: None,
            in_frame: false,
            produced: 0,
            sound: (skipped, 0),
            lz4_form: None,
            memory: FileMemory::default(),
        })
    }

    /// Enables recording of compressed frames' ends for [`Decompressor::take_frame_end`].
    #[must_use]
    pub fn noting_frame_ends(self) -> Self {
        Self {
            frame_ends: Some(VecDeque::new()),
            ..self
        }
    }

    /// Returns `true` if the decompressor's file is compressed.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        !matches!(self.codec, Codec::Plain(_))
    }

    /// Takes the next recorded end of a compressed frame at or before offset `place` of the
    /// content. Returns its offset in the file and in the content. The ends of all frames before
    /// the last byte read are recorded.
    pub fn take_frame_end(&mut self, place: u64) -> Option<(u64, u64)> {
        self.frame_ends
            .as_mut()?
            .pop_front_if(|(_, end)| *end <= place)
    }

    /// Returns the end of the last complete compressed frame that was read, as offsets in the file
    /// and in the content.
    #[must_use]
    pub fn sound_end(&self) -> (u64, u64) {
        self.sound
    }

    /// Returns the window over the compressed bytes of the file.
    fn input(&mut self) -> &mut Input<R> {
        match &mut self.codec {
            Codec::Plain(input) => input,
            Codec::Lz4(decoder) => decoder.get_mut(),
            Codec::Gzip(both) => &mut both.1,
            Codec::Zstd(both) => &mut both.1,
        }
    }

    /// Returns the error that the compressed frame after the last complete one is damaged.
    fn damaged(&self, problem: impl std::fmt::Display, kind: ErrorKind) -> io::Error {
        let at = self.sound.0;
        io::Error::new(
            kind,
            format!("the compressed frame at byte {at}: {problem}"),
        )
    }

    /// Returns the error for a file that ends within a compressed frame.
    fn torn(&self) -> io::Error {
        self.damaged("the file ends within the frame", ErrorKind::UnexpectedEof)
    }

    /// Returns the error for a file with other data after a compressed frame.
    fn foreign(&self) -> io::Error {
        self.damaged("another kind of data begins here", ErrorKind::InvalidData)
    }

    /// Advances to the next compressed frame and skips skippable zstd or LZ4 frames. Returns
    /// `false` at the end of the file.
    fn begin_frame(&mut self) -> io::Result<bool> {
        if let Codec::Gzip(both) = &mut self.codec {
            let (member, input) = &mut **both;
            return match magic(input)? {
                Some(start) if start & THREE_BYTES == GZIP => match member.begin(input)? {
                    true => Ok(true),
                    false => Err(self.torn()),
                },
                // gzip ignores zeros after the last member, as tapes have them.
                _ if input.skip_zeros()? => Ok(false),
                _ => Err(self.foreign()),
            };
        }
        let mine = match self.codec {
            Codec::Lz4(_) => LZ4,
            _ => ZSTD,
        };
        loop {
            let (_, produced) = self.sound;
            let input = self.input();
            match magic(input)? {
                None if input.held().is_empty() => return Ok(false),
                Some(found) if found == mine => {
                    // The LZ4 decoder takes the end of the buffered input for the end of the file, so
                    // that no more than the needed bytes are read ahead.
                    let bytes = if mine == LZ4 {
                        input.ensure(LZ4_DESCRIPTOR)?;
                        lz4_blocks(input.held())
                    } else {
                        input.ensure(ZSTD_HEADER)?;
                        zstd_window(input.held())
                    };
                    // The decoder itself refuses more than its limit.
                    if bytes <= MOST_WINDOW {
                        self.memory
                            .grow(MemoryUse::Decompression, bytes)
                            .map_err(|e| self.damaged(e, ErrorKind::OutOfMemory))?;
                    }
                    self.renew_lz4();
                    return Ok(true);
                }
                Some(found) if is_skippable(found) => {
                    if !skip_frame(input)? {
                        return Err(self.torn());
                    }
                    self.sound = (self.input().offset(), produced);
                }
                _ => return Err(self.foreign()),
            }
        }
    }

    /// Replaces the LZ4 decoder before a frame whose flags or block size differ from those of the
    /// frame before: the decoder expects buffers of the size that its first frame needed.
    fn renew_lz4(&mut self) {
        let Codec::Lz4(decoder) = &mut self.codec else {
            return;
        };
        let form = decoder.get_ref().held().get(4..LZ4_DESCRIPTOR);
        let form = form.and_then(|it| it.try_into().ok());
        let last = mem::replace(&mut self.lz4_form, form);
        if last.is_some() && last != form {
            let input = mem::replace(decoder.get_mut(), Window::new(Source(None), 0));
            **decoder = FrameDecoder::new(input);
        }
    }

    /// Decompresses bytes of the current compressed frame into `out`. Returns 0 at the end of the
    /// frame.
    fn read_frame(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.codec {
            Codec::Plain(input) => input.read(out),
            Codec::Lz4(decoder) => match decoder.read(out) {
                // The decoder reports the end of a file like the end of a frame.
                Ok(0) if decoder.get_ref().has_ended() => Err(ErrorKind::UnexpectedEof.into()),
                other => other,
            },
            Codec::Gzip(both) => {
                let (member, input) = &mut **both;
                let got = member.read(input, out)?;
                self.in_frame = !member.has_ended();
                Ok(got)
            }
            Codec::Zstd(both) => {
                let (context, input) = &mut **both;
                loop {
                    if !input.ensure(1)? {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    let mut from = InBuffer::around(input.held());
                    let mut to = OutBuffer::around(&mut *out);
                    let left = context
                        .decompress_stream(&mut to, &mut from)
                        .map_err(|e| io::Error::other(zstd_safe::get_error_name(e)))?;
                    let (taken, got) = (from.pos(), to.pos());
                    input.skip(taken);
                    if left == 0 {
                        self.in_frame = false;
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
        if let Codec::Plain(input) = &mut self.codec {
            return input.read(out);
        }
        loop {
            if !self.in_frame {
                if !self.begin_frame()? {
                    return Ok(0);
                }
                self.in_frame = true;
            }
            let got = self.read_frame(out).map_err(|e| match e.kind() {
                ErrorKind::Interrupted => e,
                // An error of the system: the source failed, independent of its content.
                _ if e.raw_os_error().is_some() => e,
                ErrorKind::UnexpectedEof => self.torn(),
                _ => self.damaged(&e, ErrorKind::InvalidData),
            })?;
            self.produced += got as u64;
            // The LZ4 decoder ends a frame with a read of 0 bytes, the others with its last bytes.
            if got == 0 || !self.in_frame {
                self.in_frame = false;
                self.sound = (self.input().offset(), self.produced);
                if let Some(ends) = &mut self.frame_ends {
                    ends.push_back(self.sound);
                }
            }
            if got > 0 {
                return Ok(got);
            }
        }
    }
}

/// Returns the next four bytes of the file as a number without consuming them; `None` if the file
/// ends before.
fn magic(input: &mut Window<impl Read>) -> io::Result<Option<u32>> {
    input.ensure(4)?;
    let magic = input.held().first_chunk();
    Ok(magic.map(|magic| u32::from_le_bytes(*magic)))
}

/// Returns `true` for the magic number of a skippable zstd or LZ4 frame.
fn is_skippable(magic: u32) -> bool {
    magic & !0xf == SKIPPABLE
}

/// Skips a skippable zstd or LZ4 frame by its length field. Returns `false` if the file ends
/// before.
fn skip_frame(input: &mut Window<impl Read>) -> io::Result<bool> {
    if !input.ensure(SKIPPABLE_HEADER)? {
        return Ok(false);
    }
    let len = u64::from(ByteOrder::Little.u32(input.held(), 4));
    input.skip(SKIPPABLE_HEADER);
    Ok(io::copy(&mut input.take(len), &mut io::sink())? == len)
}

/// Returns the length in bytes of a compressed file up to the end of its first compressed frame
/// with content; `None` if the file is not compressed.
///
/// # Errors
/// The file cannot be read, or a frame in this part is damaged.
pub fn first_frame_len(file: impl Read) -> io::Result<Option<u64>> {
    let mut source = Decompressor::new(file)?.noting_frame_ends();
    let mut piece = [0; 4096];
    while source.is_compressed() {
        let got = source.read(&mut piece)?;
        while let Some((end, content)) = source.take_frame_end(u64::MAX) {
            if content > 0 {
                return Ok(Some(end));
            }
        }
        if got == 0 {
            return Ok(Some(source.sound_end().0));
        }
    }
    Ok(None)
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

    #[test]
    fn lz4_frames_with_blocks_of_other_kinds_and_sizes_follow_each_other() {
        use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
        let raw: Vec<u8> = (0..300_000u32).map(|i| (i % 251 * i % 251) as u8).collect();
        let (mut file, mut content) = (Vec::new(), Vec::new());
        let modes = [BlockMode::Linked, BlockMode::Independent];
        let sizes = [BlockSize::Max64KB, BlockSize::Max4MB, BlockSize::Max256KB];
        let forms = modes
            .iter()
            .flat_map(|mode| sizes.map(|size| (*mode, size)));
        let forms: Vec<_> = forms.collect();
        for (mode, size) in forms.iter().chain(forms.iter().rev()) {
            let info = FrameInfo::new().block_mode(*mode).block_size(*size);
            let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(&raw).expect("packs");
            file.extend(encoder.finish().expect("packs"));
            content.extend(&raw);
        }
        let (got, sound, e) = unpack(&file);
        assert!(e.is_none() && got == content, "{sound:?} {e:?}");
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

    fn gzip(raw: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::GzBuilder::new()
            .filename("a.pcap")
            .comment("a comment")
            .extra([7; 30])
            .write(Vec::new(), flate2::Compression::default());
        encoder.write_all(raw).expect("packs");
        encoder.finish().expect("packs")
    }

    #[test]
    fn members_of_a_gzip_file_are_returned_up_to_the_damage() {
        let texts = [300u32, 0, 70_000, 40].map(|n| {
            let bytes = (0..n).map(|i| (i % 251 * i % 251) as u8);
            bytes.collect::<Vec<_>>()
        });
        let (mut file, mut raw, mut ends) = (Vec::new(), Vec::new(), vec![(0, 0)]);
        for text in &texts {
            file.extend(gzip(text));
            raw.extend(text);
            ends.push((file.len() as u64, raw.len() as u64));
        }
        for cut in 4..=file.len() {
            let (got, sound, e) = unpack(&file[..cut]);
            let want = *ends.iter().rfind(|end| end.0 <= cut as u64).expect("one");
            assert_eq!(sound, want, "{cut}");
            assert_eq!(e.is_some(), sound.0 != cut as u64, "{cut}: {e:?}");
            assert!(raw.starts_with(&got) && got.len() as u64 >= sound.1);
        }
        // Only the trailer is missing: the content is whole.
        let (got, _, e) = unpack(&file[..file.len() - 8]);
        assert!(got == raw && e.is_some());
        for (tail, is_sound) in [([0; 5000], true), ([7; 5000], false)] {
            let (got, sound, e) = unpack(&[&file[..], &tail].concat());
            assert_eq!((got == raw, sound), (true, *ends.last().expect("one")));
            assert_eq!(e.is_none(), is_sound, "{e:?}");
        }
        // The checksum, the length, and the data of the third member.
        let third = usize::try_from(ends[3].0).expect("short");
        for at in [third - 8, third - 4, third - 100] {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            let (_, sound, e) = unpack(&damaged);
            let e = e.expect("an error").to_string();
            let said = e.contains(&format!("byte {}", ends[2].0));
            assert!(sound == ends[2] && said, "{e}");
        }
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
    fn a_truncated_file_returns_the_complete_frames() {
        let texts: Vec<Vec<u8>> = [300u32, 0, 5000, 40]
            .iter()
            .map(|n| (0..*n).map(|i| (i * i % 251) as u8).collect())
            .collect();
        for pack in [lz4 as fn(&[u8]) -> Vec<u8>, zstd] {
            // Ends of complete frames: offsets in the file and in the content.
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
            // Zeros, and other bytes that are not a frame.
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
            // A flipped bit.
            let at = usize::try_from(ends[4].0 + 200).expect("small");
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            let (_, sound, e) = unpack(&damaged);
            assert!(e.is_some() && sound == ends[4], "{sound:?} {ends:?}");
        }
    }

    #[test]
    fn skippable_frames_before_the_first_frame_are_passed_over() {
        for pack in [lz4 as fn(&[u8]) -> Vec<u8>, zstd] {
            let file = [&skippable(4)[..], &skippable(0), &pack(&[1; 1000])].concat();
            let (got, sound, e) = unpack(&file);
            assert_eq!((got, sound), (vec![1; 1000], (file.len() as u64, 1000)));
            assert!(e.is_none(), "{e:?}");
            for cut in 8..21 {
                let e = Decompressor::new(&file[..cut]).err().expect("incomplete");
                assert!(e.to_string().contains("follows the skippable frame"), "{e}");
            }
        }
    }

    #[test]
    fn frame_ends_are_recorded_before_later_bytes_are_returned() {
        for pack in [lz4 as fn(&[u8]) -> Vec<u8>, zstd] {
            let (first, second) = (pack(&[1; 1000]), pack(&[2; 500]));
            let file = [&first[..], &skippable(100), &second].concat();
            let ends = [first.len() as u64, file.len() as u64];
            assert_eq!(first_frame_len(&file[..]).expect("reads"), Some(ends[0]));
            let source = Decompressor::new(&file[..]).expect("opens");
            let mut source = source.noting_frame_ends();
            let mut byte = [0];
            for place in 0..1500 {
                assert_eq!(source.read(&mut byte).expect("reads"), 1);
                let end = source.take_frame_end(place);
                assert_eq!(end, (place == 1000).then_some((ends[0], 1000)));
            }
            assert_eq!(source.read(&mut byte).expect("ends"), 0);
            assert_eq!(source.take_frame_end(1500), Some((ends[1], 1500)));
            assert_eq!(source.take_frame_end(u64::MAX), None);
        }
    }

    #[test]
    fn a_source_of_single_bytes_is_decompressed() {
        struct Drip<'a>(&'a [u8]);
        impl Read for Drip<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                let n = out.len().min(1);
                self.0.read(&mut out[..n])
            }
        }
        let raw: Vec<u8> = (0..3000u32).map(|i| (i % 7) as u8).collect();
        let gzipped = [gzip(&raw), gzip(&raw)].concat();
        let files = [lz4(&raw), zstd(&raw)].map(|it| [&it[..], &skippable(0), &it].concat());
        for file in files.into_iter().chain([gzipped]) {
            let mut got = Vec::new();
            Decompressor::new(Drip(&file))
                .expect("known")
                .read_to_end(&mut got)
                .expect("reads");
            assert_eq!(got, [&raw[..], &raw].concat());
        }
    }

    #[test]
    fn uncompressed_files_are_read_unchanged() {
        for start in [
            &b""[..],
            b"abc",
            b"\x0a\x0d\x0d\x0a",
            b"\x1f\x8b\x07\x00...",
        ] {
            let mut source = Decompressor::new(start).expect("opens");
            let mut content = Vec::new();
            source.read_to_end(&mut content).expect("reads");
            assert!(!source.is_compressed() && content == start);
        }
    }
}
