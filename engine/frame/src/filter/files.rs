//! Filters for frames of capture files, which can have any link type.

use super::{compiler::compiler_of, error::FilterError, expression::Filter, libpcap::ETHERNET};

/// Filter expression for frames of capture files, which can have several link types. For frames of
/// each link type, it has the meaning that it has for tcpdump reading a file of that link type. It
/// need not be defined for Ethernet: `type data` is defined for IEEE 802.11 only.
#[derive(Clone, Debug)]
pub struct FileFilter {
    /// Filter expression as the user gave it.
    expression: String,
    /// Filter for Ethernet frames, or the reason why the expression is not defined for them.
    ethernet: Result<Filter, FilterError>,
}

impl FileFilter {
    /// Compiles a filter expression for Ethernet frames, as [`Filter::compile`] does. If it is
    /// defined for other link types only, the filter has no program for Ethernet frames.
    ///
    /// # Errors
    /// libpcap rejects the expression for all link types, or a limit is exceeded.
    pub fn compile(expression: &str) -> Result<Self, FilterError> {
        let ethernet = Filter::compile(expression);
        if let Err(e) = &ethernet
            && !matches!(e, FilterError::OtherLinkType(_))
        {
            return Err(e.clone());
        }
        Ok(Self {
            expression: expression.to_owned(),
            ethernet,
        })
    }

    /// Returns the filter expression as the user gave it.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Returns `true` if the filter accepts all frames of every link type.
    #[must_use]
    pub fn accepts_all(&self) -> bool {
        self.ethernet
            .as_ref()
            .is_ok_and(|it| it.program().is_none())
    }

    /// Returns the filter for frames of a link type (LINKTYPE_ value).
    ///
    /// # Errors
    /// The expression tests properties that frames of this link type do not have, or a limit is
    /// exceeded.
    pub fn for_link_type(&self, link_type: u32) -> Result<Filter, FilterError> {
        match link_type {
            ETHERNET => self.ethernet.clone(),
            _ => compiler_of(&self.expression).compile_for(&self.expression, link_type),
        }
    }
}

impl Default for FileFilter {
    fn default() -> Self {
        Filter::default().into()
    }
}

impl From<Filter> for FileFilter {
    fn from(filter: Filter) -> Self {
        Self {
            expression: filter.expression().to_owned(),
            ethernet: Ok(filter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_compiled_for_each_link_type() {
        let filter = FileFilter::compile("udp port 53").unwrap();
        let mut packet = vec![0; 28];
        (packet[0], packet[9], packet[23]) = (0x45, 17, 53);
        let cooked = [&[0; 14][..], &[8, 0], &packet].concat();
        let ethernet = filter.for_link_type(ETHERNET).unwrap();
        for (link_type, bytes) in [(101, &packet), (113, &cooked)] {
            let other = filter.for_link_type(link_type).unwrap();
            assert_eq!(other.expression(), "udp port 53");
            assert!(other.accepts(bytes, 100) && !ethernet.accepts(bytes, 100));
        }
        assert!(filter.for_link_type(60_000).is_err());
        assert!(FileFilter::default().for_link_type(60_000).is_ok());
        assert!(FileFilter::default().accepts_all() && !filter.accepts_all());
    }

    #[test]
    fn an_expression_need_not_be_defined_for_ethernet() {
        for (expression, link_type, accepted) in [
            ("type data", 105, [8, 0, 0, 0]),
            ("inbound", 113, [0, 0, 0, 0]),
            ("vpi 7", 123, [0, 7, 0, 0]),
            ("sio 3", 140, [0, 0, 0, 3]),
        ] {
            let filter = FileFilter::compile(expression).expect(expression);
            let of_link = filter.for_link_type(link_type).expect(expression);
            for (frame, is_accepted) in [(accepted, true), ([0, 4, 0, 4], false)] {
                let frame = [&frame[..], &[0; 40]].concat();
                assert_eq!(of_link.accepts(&frame, 44), is_accepted, "{expression}");
            }
            let of_ethernet = filter.for_link_type(ETHERNET).unwrap_err();
            assert!(matches!(of_ethernet, FilterError::OtherLinkType(_)));
            assert_eq!(Filter::compile(expression).unwrap_err(), of_ethernet);
        }
        for nonsense in ["type", "type data and", "ip and not ip"] {
            let refused = FileFilter::compile(nonsense).unwrap_err();
            assert!(matches!(refused, FilterError::Libpcap(_)), "{refused}");
        }
    }
}
