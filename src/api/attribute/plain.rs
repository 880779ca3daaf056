//! An attribution as a list that a person, or a model, reads.

use std::fmt::Write as _;

use super::native::{AttributeAnswer, PartAnswer};

impl AttributeAnswer {
    /// A line for each part and, below it, what it came from and what no chunk has.
    pub fn in_plain_words(&self) -> String {
        let mut text = String::new();
        self.parts().iter().for_each(|part| part.say(&mut text));
        if text.is_empty() { "The answer has no part that could be attributed.".to_owned() } else { text }
    }
}

impl PartAnswer {
    fn say(&self, to: &mut String) {
        let verdict = match self.supported {
            Some(true) => "SUPPORTED",
            Some(false) => "NOT SUPPORTED",
            None => "NOTHING TO CHECK",
        };
        // Writing to a text cannot fail.
        let _ = writeln!(to, "{verdict}: {}", self.text);
        for source in self.sources.iter().filter(|source| source.cited) {
            let _ = writeln!(to, "  from [{}]: {}", source.chunk, source.sentence.text);
        }
        if !self.unsupported.is_empty() {
            let words: Vec<&str> = self.unsupported.iter().map(|unsupported| &*unsupported.text).collect();
            let _ = writeln!(to, "  in no chunk: {}", words.join(", "));
        }
    }
}
