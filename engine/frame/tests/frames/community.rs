//! Comparison of Community IDs with tshark, on every frame of the test captures.

use super::{Sample, tshark};
use wqcap_frame::{Headers, community_id, ethertype, protocol};
use wqcap_testkit::skip;

/// Returns tshark's protocol stack and Community ID of each frame.
fn theirs(samples: &[Sample]) -> Result<Vec<(String, Option<String>)>, String> {
    let args = ["--enable-protocol", "communityid"];
    let lines = tshark::fields(samples, &args, &["frame.protocols", "communityid"])?;
    let split = |line: &String| {
        let (stack, id) = line.split_once('|').unwrap_or((line, ""));
        (
            stack.to_owned(),
            Some(id.to_owned()).filter(|it| !it.is_empty()),
        )
    };
    Ok(lines.iter().map(split).collect())
}

/// Frame for which tshark and the engine have different Community IDs.
struct Difference<'a> {
    /// Protocol stack reported by tshark, such as `eth:ethertype:ip:udp`.
    stack: &'a str,
    /// Headers of the innermost packet.
    inner: &'a Headers,
    /// Headers of the outermost packet.
    outer: &'a Headers,
    /// Community ID computed by the engine.
    ours: Option<&'a str>,
    /// Community ID reported by tshark.
    theirs: Option<&'a str>,
}

/// Reason for a difference, and the predicate that selects the frames it applies to.
type Reason = (&'static str, fn(&Difference<'_>) -> bool);

/// Known reasons for differences; the first that applies is counted.
const REASONS: &[Reason] = &[
    (
        "IPv6 with protocols that have no ports: tshark reports no ID",
        |it| it.theirs.is_none() && it.inner.tuple.version == 6,
    ),
    (
        "a fragment without ports, or a truncated header: tshark uses the addresses alone",
        |it| it.ours.is_none() && (it.inner.fragment.is_later() || it.inner.malformed.is_some()),
    ),
    (
        "protocols that carry packets and that the engine does not parse",
        |it| {
            let carriers = [
                "avsp", "etherip", "lwapp", "macsec", "nhrp", "pim", "pwach", "sflow",
            ];
            let passes = |it: &str, name: &str| it.contains(&format!(":{name}:"));
            carriers.iter().any(|name| passes(it.stack, name)) || it.stack.contains(":gre:ip:tcp:")
        },
    ),
    (
        "pseudowires without a control word, and L2TP version 3: tshark does not find the packet",
        |it| {
            let ends_before = |name: &str| it.stack.contains(&format!(":{name}"));
            it.inner.malformed.is_none()
                && (ends_before("l2tp:data")
                    || ends_before("mpls:") && it.inner.ethertype != ethertype::MPLS)
        },
    ),
    (
        "802.11 in CAPWAP: tshark expects the first two bytes exchanged, unless a preference is set",
        |it| it.stack.ends_with(":capwap.data:wlan"),
    ),
    (
        "headers of which tshark expects one: options of Cisco metadata, NSH",
        |it| it.stack.ends_with(":cmd:ethertype:data") || it.stack.ends_with(":nsh:nsh"),
    ),
    (
        "GRE: tshark takes the addresses of the innermost packet and the protocol of the outermost",
        |it| {
            let tuple = &it.inner.tuple;
            let ends = tuple.src().zip(tuple.dst());
            let mixed = ends.and_then(|ends| community_id(ends, protocol::GRE, None));
            it.outer.tuple.protocol == protocol::GRE && it.theirs == mixed.as_deref()
        },
    ),
    (
        "UDP with a wrong length or length 0: tshark stops before the ports and before a tunnel",
        |it| it.stack.ends_with(":ip:udp") && it.outer.tuple.protocol == protocol::UDP,
    ),
];

#[test]
fn ids_of_every_frame() {
    let samples = super::samples();
    let theirs = match theirs(&samples) {
        Ok(theirs) => theirs,
        Err(reason) => skip!("{reason}"),
    };
    let (mut same, mut explained) = (0, vec![0; REASONS.len()]);
    let mut unexplained = Vec::new();
    for (sample, (stack, theirs)) in samples.iter().zip(&theirs) {
        let outer = Headers::parse(&sample.bytes);
        let inner = Headers::innermost(&sample.bytes);
        let ours = inner.community_id(&sample.bytes);
        if ours == *theirs {
            same += usize::from(ours.is_some());
            continue;
        }
        let difference = Difference {
            stack,
            inner: &inner,
            outer: &outer,
            ours: ours.as_deref(),
            theirs: theirs.as_deref(),
        };
        match REASONS.iter().position(|(_, applies)| applies(&difference)) {
            Some(reason) => explained[reason] += 1,
            None => unexplained.push(format!(
                "{} {stack}: {ours:?}, tshark {theirs:?}",
                sample.name
            )),
        }
    }
    skip::say(&format!(
        "Community IDs: {same} equal those of tshark, others differ:"
    ));
    for ((reason, _), count) in REASONS.iter().zip(&explained) {
        skip::say(&format!("  {count:4}  {reason}"));
    }
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    assert!(same > 0, "no frame has an ID");
}
