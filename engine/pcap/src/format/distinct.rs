//! Texts without repetitions.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    ops::Deref,
};

/// Texts, each once, in the order in which they were added. Adding a text takes constant time,
/// whatever their number: a file may have hundreds of thousands of comments.
#[derive(Clone, Debug, Default)]
pub struct DistinctTexts {
    list: Vec<String>,
    /// Hashes of the texts, with a key of their own.
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl DistinctTexts {
    /// Returns `true` if the text was added before.
    #[must_use]
    pub fn has(&self, text: &str) -> bool {
        self.hashes.contains(&self.hasher.hash_one(text))
    }

    /// Adds a text, unless it was added before.
    pub fn add(&mut self, text: String) {
        if self.hashes.insert(self.hasher.hash_one(text.as_str())) {
            self.list.push(text);
        }
    }
}

impl Deref for DistinctTexts {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_kept_once_in_order() {
        let mut texts = DistinctTexts::default();
        for text in ["b", "a", "b", ""] {
            texts.add(text.into());
        }
        assert_eq!(*texts, ["b", "a", ""]);
        assert!(texts.has("a") && !texts.has("c"));
    }
}
