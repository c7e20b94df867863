//! stenographer's query language, and its translation to pcap filters and times.
//!
//! ```text
//! query = term { ("and" | "&&" | "or" | "||") term }        equal precedence, from left to right
//! term  = "(" query ")" | "host" ADDRESS | "net" ADDRESS "/" BITS | "net" ADDRESS "mask" ADDRESS
//!       | "port" NUMBER | "ip" "proto" NUMBER | "icmp" | "tcp" | "udp"
//!       | ("before" | "after") (RFC3339 | NUMBER ("h" | "m") "ago")
//! ```
//!
//! Sources: README.md and query/parser.y of <https://github.com/google/stenographer>. There a query
//! selects packets through an index, which looks behind VLAN tags; so does the translation.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
};

/// Maximum length in bytes of a query in stenographer's language.
pub const LONGEST: usize = 3 << 10;
/// Maximum number of alternatives to which a stenographer query is translated.
const MOST_ALTERNATIVES: usize = 64;
/// Maximum depth of nested parentheses in a stenographer query.
const DEEPEST: usize = 64;

/// Reason why a stenographer query is refused, with the position of the fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {problem}")]
pub struct QueryError {
    /// Byte offset of the fault in the text of the stenographer query.
    pub at: usize,
    /// Description of the fault in the stenographer query.
    pub problem: String,
}

/// Alternative of a stenographer query: the frames of a time range that match a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Time range of the frames in nanoseconds since 1970; the end is exclusive.
    pub times: Range<u64>,
    /// pcap-filter expression for the frames; empty: every frame.
    pub filter: String,
}

impl Alternative {
    /// Returns the alternative with the frames that are in both alternatives; `None`: their times
    /// do not overlap.
    fn and(&self, other: &Self) -> Option<Self> {
        let start = self.times.start.max(other.times.start);
        let end = self.times.end.min(other.times.end);
        (start < end).then(|| Self {
            times: start..end,
            filter: both(&self.filter, &other.filter),
        })
    }
}

/// Joins two pcap-filter expressions with `and`.
fn both(a: &str, b: &str) -> String {
    let part = |it: &str| match it.contains(" or ") {
        true => format!("({it})"),
        false => it.to_owned(),
    };
    match (a, b) {
        ("", it) | (it, "") => it.to_owned(),
        (a, b) => format!("{} and {}", part(a), part(b)),
    }
}

/// Translates a stenographer query to alternatives: a frame matches the query if it matches one of
/// them. `now` is the present time in nanoseconds since 1970.
///
/// # Errors
/// The stenographer query is malformed, or has too many alternatives.
pub fn parse(query: &str, now: u64) -> Result<Vec<Alternative>, QueryError> {
    if query.len() > LONGEST {
        return Err(QueryError {
            at: LONGEST,
            problem: format!("the query has more than {LONGEST} bytes, which is the limit"),
        });
    }
    let mut parser = QueryParser {
        tokens: tokens(query),
        next: 0,
        len: query.len(),
        now,
    };
    let found = parser.query(0)?;
    match parser.peek() {
        None => Ok(same_times_joined(found)),
        Some(token) => Err(parser.problem(format!(
            "{token:?} is unexpected; write and, or, or the end of the query"
        ))),
    }
}

/// Joins neighbouring alternatives that have equal time ranges to one with a joined filter.
fn same_times_joined(all: Vec<Alternative>) -> Vec<Alternative> {
    let mut joined: Vec<Alternative> = Vec::new();
    for it in all {
        match joined.last_mut().filter(|last| last.times == it.times) {
            Some(last) if last.filter.is_empty() || it.filter.is_empty() => last.filter.clear(),
            // In pcap-filter(7), too, "and" and "or" have equal precedence, from left to right.
            Some(last) if it.filter.contains(" and ") => {
                last.filter = format!("{} or ({})", last.filter, it.filter);
            }
            Some(last) => last.filter = format!("{} or {}", last.filter, it.filter),
            None => joined.push(it),
        }
    }
    joined
}

/// Splits a stenographer query into words and punctuation, with their byte offsets.
fn tokens(query: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = query[at..].chars().next() {
        let rest = &query[at..];
        let len = match first {
            _ if first.is_whitespace() => {
                at += first.len_utf8();
                continue;
            }
            '(' | ')' | '/' => 1,
            '&' | '|' => rest.len() - rest.trim_start_matches(first).len(),
            _ => rest
                .find(|it: char| it.is_whitespace() || "()/&|".contains(it))
                .unwrap_or(rest.len()),
        };
        tokens.push((at, &rest[..len]));
        at += len;
    }
    tokens
}

struct QueryParser<'q> {
    tokens: Vec<(usize, &'q str)>,
    next: usize,
    len: usize,
    now: u64,
}

impl<'q> QueryParser<'q> {
    fn peek(&self) -> Option<&'q str> {
        self.tokens.get(self.next).map(|(_, text)| *text)
    }

    /// Returns an error at the position of the query's next token.
    fn problem(&self, problem: String) -> QueryError {
        let at = self.tokens.get(self.next).map_or(self.len, |(at, _)| *at);
        QueryError { at, problem }
    }

    /// Takes the query's next token, which `read` turns into a value. `wanted` describes the value
    /// in errors.
    fn take<T>(
        &mut self,
        wanted: &str,
        read: impl Fn(&'q str) -> Option<T>,
    ) -> Result<T, QueryError> {
        let found = self.peek();
        match found.and_then(read) {
            Some(value) => {
                self.next += 1;
                Ok(value)
            }
            None => Err(self.problem(match found {
                Some(token) => format!("{token:?} is not {wanted}"),
                None => format!("the query ends too early: {wanted} is missing"),
            })),
        }
    }

    fn word(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        self.next += usize::from(is_next);
        is_next
    }

    fn query(&mut self, depth: usize) -> Result<Vec<Alternative>, QueryError> {
        let mut left = self.term(depth)?;
        loop {
            let is_and = self.word("and") || self.word("&&");
            if !is_and && !self.word("or") && !self.word("||") {
                return Ok(left);
            }
            let right = self.term(depth)?;
            left = match is_and {
                true => left
                    .iter()
                    .flat_map(|a| right.iter().filter_map(|b| a.and(b)))
                    .collect(),
                false => left.into_iter().chain(right).collect(),
            };
            left = same_times_joined(left);
            if left.len() > MOST_ALTERNATIVES {
                return Err(self.problem(format!(
                    "the query has more than {MOST_ALTERNATIVES} alternatives of times; ask in several queries"
                )));
            }
        }
    }

    fn term(&mut self, depth: usize) -> Result<Vec<Alternative>, QueryError> {
        const KINDS: &str = "host, net, port, ip proto, icmp, tcp, udp, before, after or (";
        let kind = self.take(KINDS, |it| {
            let known = [
                "(", "host", "net", "port", "ip", "icmp", "tcp", "udp", "before", "after",
            ];
            known.contains(&it).then_some(it)
        })?;
        let filter = match kind {
            "(" if depth >= DEEPEST => {
                return Err(self.problem(format!(
                    "the query has more than {DEEPEST} nested parentheses, which is the limit"
                )));
            }
            "(" => {
                let inner = self.query(depth + 1)?;
                self.take("and, or, or )", |it| (it == ")").then_some(()))?;
                return Ok(inner);
            }
            "before" => return Ok(vec![always_within(0..self.time()?)]),
            "after" => return Ok(vec![always_within(self.time()?..u64::MAX)]),
            "host" => format!("host {}", self.address()?),
            "net" => self.net()?,
            "port" => format!(
                "port {}",
                self.number("a port, 0 to 65535", u32::from(u16::MAX))?
            ),
            "ip" => {
                self.take("the word proto", |it| (it == "proto").then_some(()))?;
                let number = self.number("a protocol number, 0 to 255", u32::from(u8::MAX))?;
                format!("ip proto {number} or ip6 proto {number}")
            }
            word => word.to_owned(),
        };
        Ok(vec![Alternative {
            times: 0..u64::MAX,
            filter,
        }])
    }

    fn address(&mut self) -> Result<IpAddr, QueryError> {
        self.take("an IP address", |it| it.parse().ok())
    }

    fn number(&mut self, wanted: &str, most: u32) -> Result<u32, QueryError> {
        self.take(wanted, |it| {
            let number = it.parse().ok().filter(|n| *n <= most);
            number.filter(|_| it.bytes().all(|b| b.is_ascii_digit()))
        })
    }

    /// Parses a network of the query: an address with a prefix length in bits or a mask.
    fn net(&mut self) -> Result<String, QueryError> {
        let address = self.address()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = if self.word("/") {
            self.number(&format!("a length, 0 to {most}"), most)?
        } else {
            self.take("/ or mask", |it| (it == "mask").then_some(()))?;
            self.take(
                "a mask of the address's version, with ones before zeros",
                |it| {
                    let (value, width) = match (it.parse().ok()?, address) {
                        (IpAddr::V4(mask), IpAddr::V4(_)) => (u128::from(mask.to_bits()) << 96, 32),
                        (IpAddr::V6(mask), IpAddr::V6(_)) => (mask.to_bits(), 128),
                        _ => return None,
                    };
                    let ones = value.leading_ones().min(width);
                    (value.count_ones() == ones).then_some(ones)
                },
            )?
        };
        // libpcap refuses addresses with bits beyond the length.
        let network = match address {
            IpAddr::V4(it) => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(it.to_bits() & mask))
            }
            IpAddr::V6(it) => {
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(it.to_bits() & mask))
            }
        };
        Ok(format!("net {network}/{bits}"))
    }

    /// Parses a time of the query: an absolute one, or a number of hours or minutes with the word
    /// `ago`. Returns nanoseconds since 1970.
    fn time(&mut self) -> Result<u64, QueryError> {
        let now = self.now;
        let (time, is_relative) = self.take(
            "a time such as 2026-03-01T12:00:00Z, or 45m ago, or 3h ago",
            |it| {
                let ago = |unit: char, seconds: u64| {
                    let count: u64 = it.strip_suffix(unit)?.parse().ok()?;
                    let ago = count.checked_mul(seconds * 1_000_000_000)?;
                    Some((now.saturating_sub(ago), true))
                };
                let absolute = || {
                    let is_stamp = it.contains('T') || it.contains('t');
                    let parsed = super::times::parse(it, now).ok();
                    parsed.filter(|_| is_stamp).map(|ns| (ns, false))
                };
                ago('m', 60).or_else(|| ago('h', 3600)).or_else(absolute)
            },
        )?;
        if is_relative {
            self.take("the word ago", |it| (it == "ago").then_some(()))?;
        }
        Ok(time)
    }
}

fn always_within(times: Range<u64>) -> Alternative {
    Alternative {
        times,
        filter: String::new(),
    }
}

/// Returns a pcap-filter expression for the frames of `filter`, without a VLAN tag and behind one or
/// two tags.
pub fn behind_vlan_tags(filter: &str) -> String {
    match filter {
        "" => String::new(),
        it => format!("({it}) or (vlan and (({it}) or (vlan and ({it}))))"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prelude::*, sample::select};
    use wqcap_frame::filter::Filter;

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 2_000_000_000 * SECOND;

    fn filter_of(query: &str) -> String {
        let found = parse(query, NOW).expect(query);
        assert_eq!(found.len(), 1, "{query}: {found:?}");
        assert_eq!(found[0].times, 0..u64::MAX, "{query}");
        found[0].filter.clone()
    }

    #[test]
    fn terms_become_filters() {
        for (query, filter) in [
            ("host 1.2.3.4", "host 1.2.3.4"),
            ("host 2001:db8::1", "host 2001:db8::1"),
            ("net 1.2.3.4/8", "net 1.0.0.0/8"),
            ("net 1.2.3.4 mask 255.255.0.0", "net 1.2.0.0/16"),
            ("net 0.0.0.0/0", "net 0.0.0.0/0"),
            ("net 2001:db8:1::/32", "net 2001:db8::/32"),
            ("port 80", "port 80"),
            ("ip proto 6", "ip proto 6 or ip6 proto 6"),
            ("  icmp ", "icmp"),
            ("tcp and port 443", "tcp and port 443"),
            ("(udp)&&(port 53)", "udp and port 53"),
            // Equal precedence, from left to right.
            ("tcp or udp and port 53", "(tcp or udp) and port 53"),
            ("tcp and port 80 or udp", "tcp and port 80 or udp"),
            (
                "icmp or (udp and port 53) or (tcp and port 53)",
                "icmp or (udp and port 53) or (tcp and port 53)",
            ),
            (
                "tcp and (port 80 || port 81)",
                "tcp and (port 80 or port 81)",
            ),
        ] {
            assert_eq!(filter_of(query), filter, "{query}");
        }
    }

    #[test]
    fn times_bound_their_part_of_a_query() {
        let one = |query| parse(query, NOW).expect(query);
        let times = |query| one(query)[0].times.clone();
        assert_eq!(times("before 45m ago"), 0..NOW - 45 * 60 * SECOND);
        assert_eq!(times("after 3h ago"), NOW - 3 * 3600 * SECOND..u64::MAX);
        assert_eq!(
            times("after 2012-11-03T11:05:00-07:00 and before 2012-11-03T19:05:00Z"),
            1_351_965_900 * SECOND..1_351_969_500 * SECOND
        );
        let two = one("(host 1.1.1.1 and after 1h ago) or (tcp and before 2h ago)");
        assert_eq!(two.len(), 2);
        assert_eq!(two[1].times, 0..NOW - 7200 * SECOND);
        // Nothing can match.
        assert_eq!(one("before 2h ago and after 1h ago"), []);
        assert_eq!(one("before 2h ago or tcp").len(), 2);
    }

    #[test]
    fn a_malformed_query_is_refused_with_its_position() {
        let deep = format!("{}tcp{}", "(".repeat(100), ")".repeat(100));
        let wide = vec!["(tcp and after 1h ago or udp and after 2h ago)"; 20].join(" and ");
        for (query, at) in [
            ("", 0),
            ("host", 4),
            ("host example.org", 5),
            ("port 65536", 5),
            ("port -1", 5),
            ("port +1", 5),
            ("ip 6", 3),
            ("ip proto 256", 9),
            ("net 1.2.3.4", 11),
            ("net 1.2.3.4/33", 12),
            ("net 1.2.3.4 mask 255.0.255.0", 17),
            ("net 1.2.3.4 mask ffff::", 17),
            ("tcp udp", 4),
            ("tcp and", 7),
            ("(tcp", 4),
            ("tcp)", 3),
            ("not tcp", 0),
            ("before 5 ago", 7),
            ("before 5m", 9),
            ("before 1764216000", 7),
            ("tcp &&& udp", 4),
        ] {
            let e = parse(query, NOW).expect_err(query);
            assert_eq!(e.at, at, "{query}: {e}");
        }
        assert!(parse(&deep, NOW).is_err());
        assert!(parse(&"tcp or ".repeat(10_000), NOW).is_err());
        // Products of times stay bounded.
        let _ = parse(&wide, NOW);
    }

    #[test]
    fn libpcap_compiles_every_translation() {
        for query in [
            "host 1.2.3.4 and ip proto 6 or net 2001:db8::/33 and port 53",
            "net 0.0.0.0/0 or icmp",
            "(tcp or udp) and (port 1 or port 2) and host ::1",
        ] {
            let filter = behind_vlan_tags(&filter_of(query));
            Filter::compile(&filter).expect(&filter);
        }
    }

    #[test]
    fn frames_behind_two_vlan_tags_match() {
        let mut packet = vec![0; 40];
        packet[0] = 0x45;
        packet[9] = 17;
        packet[12..20].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        (packet[21], packet[23]) = (53, 99);
        for (query, is_match) in [
            ("host 1.2.3.4", true),
            ("port 53", true),
            ("udp and net 5.6.0.0/16 and port 99", true),
            ("ip proto 6 or port 53", true),
            ("tcp and port 53", false),
            ("host 1.2.3.5 or port 54", false),
        ] {
            let filter = Filter::compile(&behind_vlan_tags(&filter_of(query))).expect(query);
            for tags in [
                &[][..],
                &[[0x81, 0]],
                &[[0x81, 0]; 2],
                &[[0x88, 0xa8], [0x81, 0]],
            ] {
                let mut frame = vec![0; 12];
                for tag in tags {
                    frame.extend(tag);
                    frame.extend([0, 7]);
                }
                frame.extend([8, 0]);
                frame.extend(&packet);
                assert_eq!(filter.accepts(&frame, 60), is_match, "{query} {tags:?}");
            }
        }
    }

    /// Returns the text of a query over ports and whether it matches a frame of ports 1 and 2: each
    /// number adds a term, and joins it or a group to the query.
    fn of_ports(steps: &[u8]) -> (String, bool) {
        let (mut text, mut matches) = ("port 1".to_owned(), true);
        for step in steps {
            let (port, is_and) = (step % 4, step / 4 % 2 == 0);
            let (term, found) = (format!("port {port}"), port == 1 || port == 2);
            let word = if is_and { "and" } else { "or" };
            let joined = |a: bool, b: bool| if is_and { a && b } else { a || b };
            text = match step / 8 % 3 {
                0 => format!("{text} {word} {term}"),
                1 => format!("{term} {word} ( {text} )"),
                _ => format!("( {text} ) {word} ( {term} or port 9 and {term} )"),
            };
            matches = joined(matches, found);
        }
        (text, matches)
    }

    /// Evaluates a pcap filter over ports for a frame of ports 1 and 2, as pcap-filter(7) says: "and"
    /// and "or" have equal precedence, from left to right. libpcap is no judge: its optimiser (1.10.3)
    /// changes the meaning of some filters with repeated terms.
    fn accepts<'t>(words: &mut impl Iterator<Item = (usize, &'t str)>) -> bool {
        let mut value = true;
        let mut word = "and";
        loop {
            let term = match words.next() {
                Some((_, "(")) => accepts(words),
                Some((_, "port")) => matches!(words.next(), Some((_, "1" | "2"))),
                other => panic!("{other:?}"),
            };
            value = if word == "and" {
                value && term
            } else {
                value || term
            };
            match words.next() {
                None | Some((_, ")")) => return value,
                Some((_, next)) => word = next,
            }
        }
    }

    proptest! {
        #[test]
        fn a_translation_matches_what_the_query_matches(
            steps in proptest::collection::vec(any::<u8>(), 0..8),
        ) {
            let (query, matches) = of_ports(&steps);
            let filter = filter_of(&query);
            let found = accepts(&mut tokens(&filter).into_iter());
            prop_assert_eq!(found, matches, "{} -> {}", query, filter);
        }
    }

    /// Words of queries, whole terms among them so that many sequences are queries.
    const WORDS: [&str; 24] = [
        "(",
        ")",
        "and",
        "&&",
        "or",
        "||",
        "host",
        "net",
        "port",
        "ip",
        "proto",
        "mask",
        "tcp",
        "icmp",
        "6",
        "5m",
        "ago",
        "before",
        "host 1.2.3.4",
        "net 2001:db8::/32",
        "port 53",
        "after 5m ago",
        "(tcp or after 1h ago)",
        "\u{e9}",
    ];

    proptest! {
        #[test]
        fn any_words_are_translated_or_refused(
            words in proptest::collection::vec(select(&WORDS[..]), 0..24),
            joined in any::<bool>(),
        ) {
            let query = words.join(if joined { " and " } else { " " });
            match parse(&query, NOW) {
                Ok(all) => {
                    prop_assert!(all.len() <= MOST_ALTERNATIVES);
                    for it in all {
                        prop_assert!(it.times.start < it.times.end, "{}", query);
                        let filter = behind_vlan_tags(&it.filter);
                        // libpcap refuses a filter that no packet can match, such as one of an IPv6 network and an
                        // IPv4 host.
                        if let Err(e) = Filter::compile(&filter) {
                            let why = e.to_string();
                            prop_assert!(why.contains("rejects all packets"), "{}: {}", query, why);
                        }
                    }
                }
                Err(e) => prop_assert!(e.at <= query.len() && query.is_char_boundary(e.at)),
            }
        }
    }
}
