//! Parser of the wire `pcap:FILE[,loop=N][,pps=N | ,speed=X][,lossy]`.

use std::num::NonZeroU64;

use super::text::{SpecError, SpecText, number};

#[derive(Clone, Debug, PartialEq)]
pub struct PcapSpec {
    pub file: String,
    /// Number of times that the `pcap` wire plays its input; 0: forever.
    pub rounds: u64,
    pub pace: PcapPace,
    pub lossy: bool,
}

/// Pace at which a `pcap` wire plays its file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PcapPace {
    /// No pacing of a `pcap` wire: frames are due as fast as the NIC takes them.
    Unpaced,
    /// Constant rate of a `pcap` wire in frames per second.
    Pps(NonZeroU64),
    /// Multiple of the recorded pace at which a `pcap` wire plays its capture file.
    Speed(f64),
}

impl PcapSpec {
    /// Parses the description of a `pcap` wire after `pcap:`. The file name may contain commas, so
    /// known options are read from the end of the text.
    pub fn parse(wire: &SpecText<'_>, rest: &str) -> Result<Self, SpecError> {
        let (mut file, mut rounds, mut pps, mut speed, mut lossy) = (rest, None, None, None, None);
        while let Some((before, word)) = file.rsplit_once(',') {
            match (word, word.split_once('=')) {
                ("lossy", _) => wire.once("lossy", &mut lossy, true)?,
                (_, Some(("loop", value))) => {
                    let allowed = "use the number of times to play the file; 0 plays it forever";
                    wire.option("loop", value, &mut rounds, number(value), allowed)?;
                }
                (_, Some(("pps", value))) => wire.pps(value, &mut pps)?,
                (_, Some(("speed", value))) => {
                    let allowed = "use a factor above 0, up to 1000000; 1 is the recorded pace";
                    let factor = value.parse().ok();
                    let factor = factor.filter(|it: &f64| *it > 0.0 && *it <= 1e6);
                    wire.option("speed", value, &mut speed, factor, allowed)?;
                }
                _ => break,
            }
            file = before;
        }
        if file.is_empty() {
            return Err(wire.error(
                "file",
                file,
                "use the path of a pcap or pcapng file, such as pcap:a.pcap",
            ));
        }
        let pace = match (pps, speed) {
            (None, None) => PcapPace::Unpaced,
            (Some(pps), None) => PcapPace::Pps(pps),
            (None, Some(speed)) => PcapPace::Speed(speed),
            (Some(pps), Some(speed)) => {
                let both = format!("pps={pps},speed={speed}");
                return Err(wire.error("pace", &both, "use only one of pps and speed"));
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
