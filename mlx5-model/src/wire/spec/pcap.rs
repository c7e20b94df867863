//! `pcap:FILE[,loop=N][,pps=N | ,speed=X][,lossy]`

use std::fmt;
use std::num::NonZeroU64;

use super::text::{SpecError, SpecText, number};

#[derive(Clone, Debug, PartialEq)]
pub struct PcapSpec {
    pub file: String,
    /// How many times it is played; 0: for ever.
    pub rounds: u64,
    pub pace: PcapPace,
    pub lossy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PcapPace {
    /// As fast as the frames are taken.
    Unpaced,
    Pps(NonZeroU64),
    /// The recorded pace, this many times faster.
    Speed(f64),
}

impl PcapSpec {
    /// The file name may contain commas: options are read from its end for as long as they are known.
    pub fn parse(wire: &SpecText<'_>, rest: &str) -> Result<Self, SpecError> {
        let (mut file, mut rounds, mut pps, mut speed, mut lossy) = (rest, None, None, None, None);
        while let Some((before, word)) = file.rsplit_once(',') {
            match (word, word.split_once('=')) {
                ("lossy", _) => wire.once("lossy", &mut lossy, true)?,
                (_, Some(("loop", value))) => {
                    let allowed = "the number of times to play the file, 0 for ever";
                    let value = number(value).ok_or_else(|| wire.error("loop", value, allowed))?;
                    wire.once("loop", &mut rounds, value)?;
                }
                (_, Some(("pps", value))) => wire.once("pps", &mut pps, wire.pps(value)?)?,
                (_, Some(("speed", value))) => {
                    let allowed = "a factor above 0 and up to 1000000; 1 is the recorded pace";
                    let value = value
                        .parse()
                        .ok()
                        .filter(|it: &f64| *it > 0.0 && *it <= 1e6)
                        .ok_or_else(|| wire.error("speed", value, allowed))?;
                    wire.once("speed", &mut speed, value)?;
                }
                _ => break,
            }
            file = before;
        }
        if file.is_empty() {
            return Err(wire.error(
                "file",
                file,
                "the path of a pcap or pcapng file, such as pcap:a.pcap",
            ));
        }
        let pace = match (pps, speed) {
            (None, None) => PcapPace::Unpaced,
            (Some(pps), None) => PcapPace::Pps(pps),
            (None, Some(speed)) => PcapPace::Speed(speed),
            (Some(pps), Some(speed)) => {
                let both = format!("pps={pps},speed={speed}");
                return Err(wire.error("pace", &both, "one of pps and speed"));
            }
        };
        Ok(Self {
            file: file.to_owned(),
            rounds: rounds.unwrap_or(1),
            pace,
            lossy: lossy.is_some(),
        })
    }
}

impl fmt::Display for PcapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pcap:{}", self.file)?;
        if self.rounds != 1 {
            write!(f, ",loop={}", self.rounds)?;
        }
        match self.pace {
            PcapPace::Unpaced => {}
            PcapPace::Pps(pps) => write!(f, ",pps={pps}")?,
            PcapPace::Speed(speed) => write!(f, ",speed={speed}")?,
        }
        f.write_str(if self.lossy { ",lossy" } else { "" })
    }
}
