//! Tests of sentence and word segmentation: tables of texts with their sentences, and properties that hold
//! for all texts.

use proptest::prelude::*;
use unicode_segmentation::UnicodeSegmentation;

use crate::sentences::{sentences, sentences_within, words};

#[track_caller]
fn check(case: &str, text: &str, expected: &[&str]) {
    let found: Vec<&str> = sentences(text).into_iter().map(|range| range.slice(text)).collect();
    assert_eq!(found, expected, "{case}");
}

// ---------------------------------------------------------------- English prose

#[test]
fn units_titles_and_sources_do_not_end_a_sentence() {
    let one = |name: &str, text: &str| check(name, text, &[text]);
    one("a measure", "Luggage of max. 23 kg and min. 2 bags is free.");
    one("an extension", "Call the office, ext. 4410, before noon.");
    one("a title in Spanish", "Habla con la Lic. Ramírez sobre el contrato.");
    one("a number sign", "La licencia N°. 88.120 es válida.");
    one("a paragraph of a law", "Nach gem. § 14 Abs. 3 der Ordnung ist das frei.");
    one("a day in German", "Sie öffnet am Freitag, 7. März 2025 wieder.");
    one("a denomination", "Er besucht eine kath. Schule in Bonn.");
    one("an ellipsis of points with spaces", "The pier was . . . I think . . . rebuilt.");
    one("a source in brackets", "They call it \"a door for the sea [...]\" (Harlow 12).");
    one("an ordinal in a list of one", "1. FC Altona spielt in der 2. Bundesliga.");
    check("ordinary words", "The door is red. Bob opened it.", &["The door is red.", "Bob opened it."]);
    check(
        "a new sentence in brackets",
        "He left early. (Nobody knew why.) She stayed.",
        &["He left early.", "(Nobody knew why.)", "She stayed."],
    );
    check(
        "a list in one line",
        "1. Open the valve 2. Wait for the light 3. Close it",
        &["1. Open the valve", "2. Wait for the light", "3. Close it"],
    );
    check("letters", "a. Open it b. Close it", &["a. Open it", "b. Close it"]);
    check("brackets", "1) Open it 2) Close it", &["1) Open it", "2) Close it"]);
    check("bullets", "• 9. Open it • 10. Close it", &["• 9. Open it", "• 10. Close it"]);
    one("numbers inside a sentence", "Choose 1) the red or 2) the blue one.");
    check("Armenian", "Նա եկավ: Ես տանն էի:", &["Նա եկավ:", "Ես տանն էի:"]);
    check("a title in Chinese", "他看了《走吧！朋友》。很好。", &["他看了《走吧！朋友》。", "很好。"]);
}

#[test]
fn plain_prose() {
    check("empty", "", &[]);
    check("whitespace only", " \t\r\n\u{A0}\u{3000}\n", &[]);
    check("one word", "Hello", &["Hello"]);
    check("two sentences", "One is here. Two is there.", &["One is here.", "Two is there."]);
    check("question, exclamation", "Why? Because! So it is.", &["Why?", "Because!", "So it is."]);
    check("surrounding whitespace", "  One.\u{A0} Two.  ", &["One.", "Two."]);
    check("no-break space between", "One is.\u{A0}Two is.", &["One is.", "Two is."]);
    check("capitals", "NASA. THE AGENCY FLEW.", &["NASA.", "THE AGENCY FLEW."]);
    check(
        "a name with an exclamation mark",
        "Yahoo! is old. Bing is not.",
        &["Yahoo! is old.", "Bing is not."],
    );
    check("a number starts a sentence", "It was cold. 25 people died.", &["It was cold.", "25 people died."]);
    check(
        "a year ends, a number starts",
        "Born in 1998. 25 years passed.",
        &["Born in 1998.", "25 years passed."],
    );
    check("a number after a short word", "He did it. 5 people saw.", &["He did it.", "5 people saw."]);
    check(
        "a number after an unknown abbreviation",
        "See KV. 550 and iv. 297 there.",
        &["See KV. 550 and iv. 297 there."],
    );
    check(
        "a lower-case name starts",
        "Sales fell. iPhone sales rose.",
        &["Sales fell.", "iPhone sales rose."],
    );
    check("a space before the stop", "It ends . Then it starts .", &["It ends .", "Then it starts ."]);
    check("several marks", "What?! No!!! Fine.", &["What?!", "No!!!", "Fine."]);
    check("control characters", "One.\u{0} Two\u{7}.\u{1B} Three.", &["One.\u{0} Two\u{7}.\u{1B} Three."]);
}

#[test]
fn abbreviations() {
    check(
        "title before a name",
        "Dr. Smith met Mrs. Jones. They left.",
        &["Dr. Smith met Mrs. Jones.", "They left."],
    );
    check("title in capitals", "DR. SMITH MET MR. JONES.", &["DR. SMITH MET MR. JONES."]);
    check(
        "e.g. and i.e.",
        "Fruit, e.g. Apples, i.e. Food. Good.",
        &["Fruit, e.g. Apples, i.e. Food.", "Good."],
    );
    check("country before a name", "The U.S. Congress met.", &["The U.S. Congress met."]);
    check(
        "country ends",
        "He lives in the U.S. The president too.",
        &["He lives in the U.S.", "The president too."],
    );
    check(
        "U.K. and U.N.",
        "The U.K. Parliament and U.N. Women met.",
        &["The U.K. Parliament and U.N. Women met."],
    );
    check("company goes on", "Apple Inc. Shares rose. It won.", &["Apple Inc. Shares rose.", "It won."]);
    check(
        "company ends",
        "He joined Apple Inc. In 2008 he left.",
        &["He joined Apple Inc.", "In 2008 he left."],
    );
    check("versus", "Ali vs. Frazier was long. Ali lost.", &["Ali vs. Frazier was long.", "Ali lost."]);
    check("number", "See No. 5 and Fig. 3. Go.", &["See No. 5 and Fig. 3.", "Go."]);
    check("the word no", "Is it so? No. It is not.", &["Is it so?", "No.", "It is not."]);
    check("Roman numeral", "Vol. IV is out. Read it.", &["Vol. IV is out.", "Read it."]);
    check(
        "et al.",
        "Smith et al. (2010) say so. Doe et al. The end.",
        &["Smith et al. (2010) say so.", "Doe et al.", "The end."],
    );
    check(
        "saint and street",
        "In St. Louis on Main St. The sun set.",
        &["In St. Louis on Main St.", "The sun set."],
    );
    check(
        "month",
        "On Jan. 5 it rained. In Feb. It snowed.",
        &["On Jan. 5 it rained.", "In Feb.", "It snowed."],
    );
    check(
        "hour",
        "At 5 p.m. Eastern he came. At 6 a.m. He left.",
        &["At 5 p.m. Eastern he came.", "At 6 a.m.", "He left."],
    );
    check(
        "initials",
        "J. R. R. Tolkien wrote. George W. Bush read.",
        &["J. R. R. Tolkien wrote.", "George W. Bush read."],
    );
    check("initials without spaces", "J.R.R. Tolkien wrote it.", &["J.R.R. Tolkien wrote it."]);
    check(
        "degree",
        "Ann, Ph.D. Harvard, spoke. B. Li, M.D. He too.",
        &["Ann, Ph.D. Harvard, spoke.", "B. Li, M.D.", "He too."],
    );
    check(
        "junior",
        "Martin Luther King Jr. Day is here. It is.",
        &["Martin Luther King Jr. Day is here.", "It is."],
    );
    check("pages", "See pp. 12–14 and p. 3. Or not.", &["See pp. 12–14 and p. 3.", "Or not."]);
    check("legal", "In Roe v. Wade it held. Then not.", &["In Roe v. Wade it held.", "Then not."]);
}

#[test]
fn numbers_names_and_marks() {
    check(
        "decimals",
        "Pi is 3.14. It cost $1.5 million. .5 is half.",
        &["Pi is 3.14.", "It cost $1.5 million.", ".5 is half."],
    );
    check("version", "Use v1.2.3. Not v2.0.", &["Use v1.2.3.", "Not v2.0."]);
    check(
        "address",
        "See https://a.org/x.html?q=A.B!C. Then go.",
        &["See https://a.org/x.html?q=A.B!C.", "Then go."],
    );
    check("file name", "Edit main.rs and README.Md. Save.", &["Edit main.rs and README.Md.", "Save."]);
    check(
        "dot name",
        "The .NET runtime and Node.js Express run.",
        &["The .NET runtime and Node.js Express run."],
    );
    check("mail", "Write to a.b@c.org. Thanks.", &["Write to a.b@c.org.", "Thanks."]);
    check("numbers of items", "Steps: 1. Mix it. 2. Bake it.", &["Steps: 1. Mix it.", "2. Bake it."]);
    check("a time", "It leaves at 18:25. Have a good trip.", &["It leaves at 18:25.", "Have a good trip."]);
    check("item number", "1. First item. Then more.", &["1. First item.", "Then more."]);
    check("section number", "2.3. Results are good. IV. Others.", &["2.3. Results are good.", "IV. Others."]);
    check(
        "ellipsis goes on",
        "He waited... and left. I... I know.",
        &["He waited... and left.", "I... I know."],
    );
    check("four dots", "He left.... I stayed…. I went.", &["He left....", "I stayed….", "I went."]);
    check("a word in brackets alone", "[...] He went.", &["[...] He went."]);
    check("item number after a short word", "It is you. 3. Go on.", &["It is you.", "3. Go on."]);
    check(
        "ellipsis ends",
        "He waited... Then he left. So… Now what?",
        &["He waited...", "Then he left.", "So…", "Now what?"],
    );
    check(
        "quotation closes",
        "\"I left.\" She knew. “Go!” He went.",
        &["\"I left.\"", "She knew.", "“Go!”", "He went."],
    );
    check(
        "reported speech",
        "\"Why?\" he asked. 'Go.' she said.",
        &["\"Why?\" he asked.", "'Go.' she said."],
    );
    check("quotation opens", "He left. \"Come,\" she said.", &["He left.", "\"Come,\" she said."]);
    check(
        "brackets",
        "It ended. (Or so they say.) Next. [Sic.] End.",
        &["It ended.", "(Or so they say.)", "Next.", "[Sic.]", "End."],
    );
    check(
        "citation",
        "He won in 1998.[3] Next he lost.[4][12] Then?",
        &["He won in 1998.[3]", "Next he lost.[4][12]", "Then?"],
    );
    check(
        "citation needed",
        "It is so.[citation needed] It was.",
        &["It is so.[citation needed]", "It was."],
    );
    check(
        "citation after an abbreviation",
        "He joined Acme Inc.[7] Google sued.",
        &["He joined Acme Inc.[7]", "Google sued."],
    );
    check("emphasis", "**It is.** *So be it.* Next.", &["**It is.**", "*So be it.*", "Next."]);
    check("tags", "<b>It is.</b> So.<sup>[1]</sup> Next.", &["<b>It is.</b>", "So.<sup>[1]</sup>", "Next."]);
    check("emoji", "Great! 😀 Next one. 👩‍👩‍👧", &["Great!", "😀 Next one. 👩‍👩‍👧"]);
    check("emoji alone after a stop", "It works. 🎉🎉\n\nNext.", &["It works. 🎉🎉", "Next."]);
    check("joiner", "क्\u{200D}ष है। 👨\u{200D}👩 ok.", &["क्\u{200D}ष है।", "👨\u{200D}👩 ok."]);
    check("combining marks", "Cafe\u{301}. E\u{301}te\u{301}.", &["Cafe\u{301}.", "E\u{301}te\u{301}."]);
}

// ---------------------------------------------------------------- other languages and scripts

#[test]
fn languages() {
    check(
        "German",
        "Er mag z. B. Obst, d. h. Äpfel. Gut so.",
        &["Er mag z. B. Obst, d. h. Äpfel.", "Gut so."],
    );
    check(
        "German ordinals",
        "Am 3. Oktober im 19. Jahrhundert. Der 1. FC siegte.",
        &["Am 3. Oktober im 19. Jahrhundert.", "Der 1. FC siegte."],
    );
    check(
        "German titles",
        "Prof. Dr. Müller kam ca. 5 Min. später. „Nein.“ Sie ging.",
        &["Prof. Dr. Müller kam ca. 5 Min. später.", "„Nein.“", "Sie ging."],
    );
    check("German era", "44 v. Chr. Die Iden. Er starb.", &["44 v. Chr.", "Die Iden.", "Er starb."]);
    check("French", "M. Dupont et Mme. Roux. Il part.", &["M. Dupont et Mme. Roux.", "Il part."]);
    check(
        "French quotation",
        "« Viens ! » Elle vint. Qui ? Lui.",
        &["« Viens ! »", "Elle vint.", "Qui ?", "Lui."],
    );
    check(
        "Spanish",
        "El Sr. García llegó. ¿Qué pasó? ¡Nada!",
        &["El Sr. García llegó.", "¿Qué pasó?", "¡Nada!"],
    );
    check(
        "Spanish abbreviations",
        "Los EE. UU. y la pág. 3. Después no.",
        &["Los EE. UU. y la pág. 3.", "Después no."],
    );
    check(
        "Russian",
        "В 1998 г. Он родился. А. С. Пушкин писал.",
        &["В 1998 г.", "Он родился.", "А. С. Пушкин писал."],
    );
    check("Greek", "Ήρθε. Έφυγε.", &["Ήρθε.", "Έφυγε."]);
    check("Chinese", "他来了。你好吗？很好！", &["他来了。", "你好吗？", "很好！"]);
    check(
        "Chinese quotation",
        "他说：“你好。”然后走了。“再见。”",
        &["他说：“你好。”", "然后走了。", "“再见。”"],
    );
    check("Japanese", "彼は来た。「はい。」彼女は言った。", &["彼は来た。", "「はい。」", "彼女は言った。"]);
    check(
        "Japanese quotation goes on",
        "「何？」と彼は言った。終わり。",
        &["「何？」と彼は言った。", "終わり。"],
    );
    check("Korean", "나는 간다. 너는 온다! 3.5점이다.", &["나는 간다.", "너는 온다!", "3.5점이다."]);
    check("Arabic", "ما هذا؟ هذا كتاب. نعم!", &["ما هذا؟", "هذا كتاب.", "نعم!"]);
    check("Urdu", "یہ کتاب ہے۔ وہ قلم ہے۔", &["یہ کتاب ہے۔", "وہ قلم ہے۔"]);
    check("Hebrew", "הוא בא. היא הלכה. למה?", &["הוא בא.", "היא הלכה.", "למה?"]);
    check("Hindi", "यह है। वह था। क्या?", &["यह है।", "वह था।", "क्या?"]);
    check("Georgian", "ეს არის. ის იყო.", &["ეს არის.", "ის იყო."]);
    check("Armenian", "Սա է։ Նա էր։", &["Սա է։", "Նա էր։"]);
    check("short Thai", "ฉันไป เธอมา", &["ฉันไป เธอมา"]);
}

#[test]
fn thai_is_cut_at_spaces() {
    let phrase = "กรุงเทพมหานครเป็นเมืองหลวงและนครที่มีประชากรมากที่สุดของประเทศไทย";
    check("long Thai", &[phrase; 3].join(" "), &[phrase; 3]);
    check("a name within", &format!("{phrase} 2024 {phrase}"), &[&format!("{phrase} 2024 {phrase}")]);
}

// ---------------------------------------------------------------- layout and long sentences

#[test]
fn lines_of_different_layout() {
    check("paragraphs", "no stop\n\nnext\r\n\r\nlast", &["no stop", "next", "last"]);
    check("short lines", "Name: Ada\nBorn: 1815", &["Name: Ada", "Born: 1815"]);
    check(
        "wrapped, lower case",
        "It was\nvery long. So\r\nit was.",
        &["It was\nvery long.", "So\r\nit was."],
    );
    let wrapped = "The house that was built by the river for John\nSmith was sold to a family from Paris in the year\n1998. It burned.";
    check("wrapped, full lines", wrapped, &[&wrapped[..wrapped.len() - 11], "It burned."]);
    check(
        "a title above a long line",
        &format!("A title of more than forty columns, by someone\n{}", "Word and ".repeat(30).trim()),
        &["A title of more than forty columns, by someone", "Word and ".repeat(30).trim()],
    );
    check(
        "headings",
        "# One. Two\nText is. More.\n## Three\nEnd",
        &["# One. Two", "Text is.", "More.", "## Three", "End"],
    );
    check("underlined heading", "Title\n=====\nText.", &["Title\n=====", "Text."]);
    check("wiki heading", "== History ==\nIt began.", &["== History ==", "It began."]);
    check(
        "list",
        "- one\n- two. Three\n* four\n  goes on\n1. five\n2) six",
        &["- one", "- two.", "Three", "* four\n  goes on", "1. five", "2) six"],
    );
    check(
        "table",
        "| a. B | c |\n|---|---|\n| 1. 2 | 3. D |",
        &["| a. B | c |\n|---|---|", "| 1. 2 | 3. D |"],
    );
    check("bare table", "a | b. C | d\n1 | 2 | 3", &["a | b. C | d", "1 | 2 | 3"]);
    check(
        "short code",
        "See:\n```rust\nlet a = 1. ;\n\nB. C\n```\nDone.",
        &["See:", "```rust\nlet a = 1. ;\n\nB. C\n```", "Done."],
    );
    check("an open fence", "```\nOne. Two.", &["```", "One.", "Two."]);
    check("quoted lines", "> One goes\n> on. Two.", &["> One goes\n> on.", "Two."]);
    check("line separators", "One\u{2028}two\u{2029}three", &["One", "two", "three"]);
    check("old line ends", "one\r\rtwo", &["one", "two"]);
}

#[test]
fn long_code_is_cut_at_blank_lines() {
    let half = "let x = f(y). G();\n".repeat(20);
    let text = format!("```\n{half}\n{half}```");
    let expected = [format!("```\n{}", half.trim_end()), format!("{half}```")];
    check("long code", &text, &[&expected[0], &expected[1]]);
}

#[test]
fn long_sentences_are_divided() {
    let check = |case: &str, text: &str, bytes_max, expected: &[&str]| {
        let found: Vec<&str> =
            sentences_within(text, bytes_max).into_iter().map(|range| range.slice(text)).collect();
        assert_eq!(found, expected, "{case}");
    };
    check("at a clause", "alpha beta, gamma delta epsilon", 16, &["alpha beta,", "gamma delta", "epsilon"]);
    check("at a space", "alpha beta gamma", 11, &["alpha beta", "gamma"]);
    check("in a word", "abcdefghij", 4, &["abcd", "efgh", "ij"]);
    check("never in a cluster", "e\u{301}e\u{301}e\u{301}", 4, &["e\u{301}", "e\u{301}", "e\u{301}"]);
    check("a cluster over the limit", "👩‍👩‍👧‍👦x", 5, &["👩‍👩‍👧‍👦", "x"]);
    check("a limit of 0", "ab", 0, &["a", "b"]);
}

// ---------------------------------------------------------------- words

#[track_caller]
fn check_words(case: &str, text: &str, expected: &[&str]) {
    let found: Vec<&str> = words(text).into_iter().map(|range| range.slice(text)).collect();
    assert_eq!(found, expected, "{case}");
}

#[test]
fn words_include_the_punctuation_that_touches_them() {
    check_words("empty", "", &[]);
    check_words("blank", " \t\r\n\u{3000}", &[]);
    check_words("one", "tide", &["tide"]);
    check_words("a sentence", "The tide, it rises!", &["The", "tide,", "it", "rises!"]);
    check_words("spaces of any kind and number", "a  b\u{a0}c\u{2003}d\n", &["a", "b", "c", "d"]);
    check_words("quotes and brackets", "\"Yes\" (he said).", &["\"Yes\"", "(he", "said)."]);
    check_words("contractions", "don't stop", &["don't", "stop"]);
    check_words("numbers", "3.14 and 1,000", &["3.14", "and", "1,000"]);
    check_words("punctuation alone", "... - ?!", &["...", "-", "?!"]);
    check_words("a URL stays whole", "see https://a.b/c?d=e", &["see", "https://a.b/c?d=e"]);
}

#[test]
fn words_of_many_scripts() {
    check_words("combining marks stay", "e\u{301}te\u{301} o\u{308}", &["e\u{301}te\u{301}", "o\u{308}"]);
    check_words("a joined emoji is one", "hi 👩‍👩‍👧‍👦 👍🏽", &["hi", "👩‍👩‍👧‍👦", "👍🏽"]);
    check_words("Hebrew", "שלום עולם.", &["שלום", "עולם."]);
    check_words("Korean has spaces", "밀물은 온다.", &["밀물은", "온다."]);
    check_words("Chinese by dictionary", "天气很好。", &["天气", "很好。"]);
    check_words("Thai by model", "ภาษาไทย", &["ภาษา", "ไทย"]);
    check_words("control characters are no spaces", "a\u{0}b", &["a\u{0}b"]);
}

// ---------------------------------------------------------------- properties

/// Checks that sentences are ordered, disjoint, trimmed, complete and on cluster boundaries, and that only
/// single clusters exceed the limit.
fn check_properties(text: &str, bytes_max: usize) -> Result<(), TestCaseError> {
    let clusters: std::collections::BTreeSet<usize> =
        text.grapheme_indices(true).map(|(at, _)| at).chain([text.len()]).collect();
    let is_boundary = |at: usize| {
        clusters.contains(&at)
            || text[..at].ends_with(char::is_whitespace)
            || text[at..].starts_with(char::is_whitespace)
    };
    let mut last = 0;
    for range in sentences_within(text, bytes_max) {
        prop_assert!(range.start >= last && !range.is_empty(), "order in {:?}", text);
        let (between, inside) = (&text[last..range.start], range.slice(text));
        prop_assert!(between.chars().all(char::is_whitespace), "lost {:?} of {:?}", between, text);
        prop_assert_eq!(inside, inside.trim());
        prop_assert!(
            is_boundary(range.start) && is_boundary(range.end),
            "{:?} cuts a cluster of {:?}",
            inside,
            text
        );
        prop_assert!(
            inside.len() <= bytes_max || inside.graphemes(true).count() == 1,
            "{:?} is too long",
            inside
        );
        prop_assert!(sentences(inside).iter().all(|part| part.end <= inside.len()));
        last = range.end;
    }
    prop_assert!(text[last..].chars().all(char::is_whitespace), "lost the end of {:?}", text);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text(text in any::<String>(), bytes_max in 1usize..100) {
        check_properties(&text, bytes_max)?;
    }

    #[test]
    fn hostile_punctuation(text in "([.!?…。？।]|[ \\n\\r\u{A0}\u{2028}]|[\"'“”«»()\\[\\]「」]|[A-Ca-c1-3]|\\*|[\u{301}\u{200D}\u{600}🇩🇪]){0,60}") {
        check_properties(&text, 2000)?;
    }

    #[test]
    fn hostile_layout(text in "(\n|\r\n| |```|~~~|\\| |- |# |1\\. |==|---|> |[a-zA-Z. ]{1,50}|漢字。|กขค ){0,40}", bytes_max in 1usize..400) {
        check_properties(&text, bytes_max)?;
    }

    #[test]
    fn words_and_stops(text in "((Dr|U\\.S|e\\.g|No|z|B|The|is|5|1998|iPhone)(\\.|\\. |\\.\\[3\\] |! |, | )){0,30}") {
        check_properties(&text, 2000)?;
    }
}

/// This test measures nothing, but a quadratic algorithm takes minutes on these texts, a linear one far less
/// than a second.
#[test]
fn hostile_texts_of_large_size_end_soon() {
    let parts = [
        ".",
        ". ",
        "a.",
        "A. ",
        ".*",
        "?*",
        "! ",
        "\u{2028}",
        ".\u{2028}",
        "[",
        ".[",
        "1. ",
        "x",
        "…",
        "🇩🇪",
        "e\u{301}",
        "(",
        "- ",
        "\n",
        "``` \n",
        "```a\n",
        "| ",
        " » ",
        "ก ",
        "。「",
        "\u{300}",
        "\u{600}",
        "!\u{300}",
        "\r",
        "-\n",
        "A\n",
        " \u{85}",
    ];
    for part in parts {
        let text = part.repeat(300_000 / part.len());
        let found = sentences(&text);
        assert!(found.iter().all(|range| range.end <= text.len()), "{part:?}");
    }
}
