//! Table of devices from selftest reports, in Markdown, as in `docs/cards.md`.

use super::report::{Outcome, SelftestReport};
use std::path::Path;

/// Features that only some devices have, each with the ID of its selftest finding. A device has the
/// feature if the finding is accepted or has the value `true`.
const OFFERS: [(&str, &str); 6] = [
    ("FCS", "wq/flag/scatter_fcs"),
    ("VLAN stripping", "wq/flag/cvlan_stripping"),
    ("delay drop", "wq/flag/delay_drop"),
    ("tunnels", "rule/vxlan, inner ipv4 tcp"),
    ("real time", "clock/real_time"),
    ("sniffer", "rule/sniffer"),
];
/// ID of the selftest finding with the throughput that the table shows.
const FASTEST: &str = "throughput: 4 queues, 64 bytes";

/// Formats selftest reports as a Markdown table of devices. Each path is that of the report's file.
pub fn table(reports: &[(&Path, SelftestReport)]) -> String {
    let mut text = String::from(
        "| device | firmware | kernel | as expected | refused | offers | PCIe | 64-byte frames, 4 queues | report |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for (path, report) in reports {
        text.push_str(&row(path, report));
    }
    text
}

/// Formats the table row of the device in a selftest report.
fn row(path: &Path, report: &SelftestReport) -> String {
    let finding = |id: &str| {
        let found = report.findings.iter().find(|it| it.id == id);
        found.map(|it| &it.outcome)
    };
    let (vendor, part) = report.part;
    let device = format!("{vendor:04x}:{part:04x}");
    let device = match report.software {
        true => format!("software NIC ({device})"),
        false => device,
    };
    let right = report.count(|it| matches!(it, Outcome::AsExpected));
    let wrong = report.count(|it| matches!(it, Outcome::Differs { .. }));
    let early = match report.ended_early {
        Some(_) => ", ended early",
        None => "",
    };
    let offers = OFFERS.iter();
    let yes = Outcome::Value { value: true.into() };
    let offers: Vec<_> = offers
        .filter(|(_, id)| finding(id).is_some_and(|it| [&Outcome::Accepted, &yes].contains(&it)))
        .map(|(name, _)| *name)
        .collect();
    let link = ["pcie/current_link_speed", "pcie/current_link_width"].map(|id| match finding(id) {
        Some(Outcome::Value { value }) => value.as_str().map(str::to_owned),
        _ => None,
    });
    let link = match link {
        [Some(speed), Some(width)] => format!("{speed} x{width}"),
        _ => "-".into(),
    };
    let rate = match finding(FASTEST) {
        // For the software NIC the rate depends on the machine.
        _ if report.software => "-".into(),
        Some(Outcome::Measured { value, unit, .. }) => format!("{value:.1} {unit}"),
        _ => "-".into(),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let cells = [
        device,
        report.firmware.clone(),
        report.kernel.clone(),
        format!("{right} of {}{early}", right + wrong),
        report
            .count(|it| matches!(it, Outcome::Refused { .. }))
            .to_string(),
        offers.join(", "),
        link,
        rate,
        format!("[{name}](cards/{name})"),
    ];
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::{super::report::Finding, *};

    #[test]
    fn a_row_has_the_findings() {
        let mut report = SelftestReport::new(true);
        report.part = (0x15b3, 0x1019);
        report.firmware = "16.35.2000".into();
        report.kernel = "6.1.0".into();
        let text = |it: &str| Outcome::Value { value: it.into() };
        for (id, outcome) in [
            ("wq/flag/scatter_fcs", Outcome::Accepted),
            ("wq/flag/delay_drop", Outcome::refused(libc::EPERM)),
            ("frame: ipv4 tcp", Outcome::AsExpected),
            ("pcie/current_link_speed", text("8.0 GT/s PCIe")),
            ("pcie/current_link_width", text("16")),
            (
                FASTEST,
                Outcome::Measured {
                    value: 41.25,
                    unit: "Mpps".into(),
                    uncertainty: None,
                },
            ),
        ] {
            report.findings.push(Finding {
                subject: "any".into(),
                id: id.into(),
                us: 0,
                outcome,
            });
        }
        let all = table(&[(Path::new("some/cx5.json"), report)]);
        let row = all.lines().nth(2);
        assert_eq!(
            row,
            Some(
                "| 15b3:1019 | 16.35.2000 | 6.1.0 | 1 of 1 | 1 | FCS | 8.0 GT/s PCIe x16 | 41.2 Mpps | \
                 [cx5.json](cards/cx5.json) |"
            )
        );
    }
}
