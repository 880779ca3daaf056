//! Tables: English prose, its abbreviations, numbers, quotations and marks.

use super::check;

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
    check("stop after a space", "It ends . Then it starts .", &["It ends .", "Then it starts ."]);
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
