//! The language of a text.

use std::fmt;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

/// The number of characters at the beginning of a text that tell its language. More make the answer hardly
/// better and cost time.
const SAMPLE_CHARS_MAX: usize = 300;

/// A language by its ISO 639-3 code, such as `eng` or `rus`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct Lang([u8; 3]);

impl Lang {
    /// Returns the language of `text`, or `None` if it cannot be told reliably: because the text is short, or
    /// reads the same in several languages. About half of all questions are too short.
    ///
    /// ```
    /// use thresher_core::text::Lang;
    ///
    /// let german = Lang::of("Der Leuchtturm wurde nach zwei Jahren Bauzeit fertig.").expect("a long text");
    /// assert_eq!(german.code(), "deu");
    /// assert_eq!(Lang::of("42"), None);
    /// ```
    pub fn of(text: &str) -> Option<Self> {
        let end = text.char_indices().nth(SAMPLE_CHARS_MAX).map_or(text.len(), |(end, _)| end);
        let found = whatlang::detect(&text[..end]).filter(whatlang::Info::is_reliable)?;
        Self::from_bytes(found.lang().code().as_bytes().try_into().ok()?)
    }

    /// Returns the language whose code has these bytes, or `None` if they are not three lower-case ASCII
    /// letters.
    pub fn from_bytes(bytes: [u8; 3]) -> Option<Self> {
        bytes.iter().all(u8::is_ascii_lowercase).then_some(Self(bytes))
    }

    /// Returns the bytes of the code.
    pub fn as_bytes(self) -> [u8; 3] {
        self.0
    }

    /// Returns the code.
    pub fn code(&self) -> &str {
        std::str::from_utf8(&self.0).expect("the constructor takes only ASCII letters")
    }
}

impl fmt::Debug for Lang {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl Serialize for Lang {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(Lang::of(text).as_ref().map(Lang::code), expect, "{text}");
    }

    #[test]
    fn languages_are_told_or_left_open() {
        check("The lighthouse was finished after two years of hard work on the rocks.", Some("eng"));
        check(
            "Строительство маяка продолжалось два года. После этого на нём каждую ночь зажигали огонь, который было видно с моря.",
            Some("rus"),
        );
        check("灯塔建于一八七四年，耗时两年。", Some("cmn"));
        check("ประภาคารสร้างเสร็จในปี 1874", Some("tha"));
        check("بُنيت المنارة في عام 1874 بعد عامين من العمل الشاق على الصخور.", Some("ara"));
        check("", None);
        check("12 3.5 – …", None);
        check("ok", None);
    }

    #[test]
    fn only_the_beginning_of_a_long_text_counts() {
        let english = "The lighthouse was finished after two years of hard work. ".repeat(6);
        check(&(english + &"Маяк был построен за два года. ".repeat(90)), Some("eng"));
    }
}
