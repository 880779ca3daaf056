//! Kinds of texts, and what one part of each needs: a table of short texts, each with what has to come along if one of its parts is chosen.
//! A row that is known to fail says why. Such a row that passes fails the test as well, so that the table stays true.

use thresher_text::Kind;
use thresher_text::outline::Layout;

struct Row {
    name: &'static str,
    kind: Kind,
    text: &'static str,
    /// A part of the text that is chosen, and what must be kept with it, and what must not.
    chosen: &'static str,
    kept: &'static [&'static str],
    left: &'static [&'static str],
    fails: Option<&'static str>,
}

const fn row(name: &'static str, kind: Kind, text: &'static str) -> Row {
    Row { name, kind, text, chosen: "", kept: &[], left: &[], fails: None }
}

impl Row {
    const fn keeps(self, chosen: &'static str, kept: &'static [&'static str]) -> Self {
        Self { chosen, kept, ..self }
    }

    const fn leaves(self, left: &'static [&'static str]) -> Self {
        Self { left, ..self }
    }

    const fn fails(self, why: &'static str) -> Self {
        Self { fails: Some(why), ..self }
    }

    /// Returns what is wrong.
    fn fault(&self) -> Option<String> {
        let layout = Layout::detect(self.text, Kind::Auto);
        if layout.kind != self.kind {
            return Some(format!("is {:?}", layout.kind));
        }
        let kept = if layout.pieces.is_empty() {
            let mut sentences =
                thresher_text::sentences(self.text).into_iter().map(|range| range.slice(self.text));
            sentences.find(|text| text.contains(self.chosen)).expect(self.name).to_owned()
        } else {
            self.closure(&layout)
        };
        let missing = self.kept.iter().find(|part| !kept.contains(**part));
        let extra = self.left.iter().find(|part| kept.contains(**part));
        missing
            .map(|part| format!("lacks {part:?}: {kept:?}"))
            .or(extra.map(|part| format!("has {part:?}: {kept:?}")))
    }

    /// Returns the pieces that are kept with the chosen one.
    fn closure(&self, layout: &Layout) -> String {
        let pieces = &layout.pieces;
        let text = |piece: usize| pieces[piece].bytes.slice(self.text);
        let first = (0..pieces.len()).find(|&piece| text(piece).contains(self.chosen)).expect(self.name);
        let mut todo: Vec<usize> = [first].into_iter().chain(pieces[first].introduces()).collect();
        let mut kept = vec![false; pieces.len()];
        while let Some(piece) = todo.pop() {
            if !std::mem::replace(&mut kept[piece], true) {
                todo.extend(pieces[piece].required());
            }
        }
        (0..pieces.len()).filter(|&piece| kept[piece]).map(|piece| format!("{}\n", text(piece))).collect()
    }
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("a pronoun", Kind::Prose, "The mill was built in 1790. It has six floors. A road passes by.")
        .keeps("six floors", &["The mill"]).leaves(&["A road"]),
    row("a pronoun behind a phrase", Kind::Prose, "Ada built two mills. In 1929 she left. Rain fell. At the fair in Ulm it rained.")
        .keeps("she left", &["Ada"]).leaves(&["Rain"]),
    row("an exception", Kind::Prose, "The bath opens at nine. However, it does not open in May. Entry is 3 euros.")
        .keeps("at nine", &["not open in May"]).leaves(&["Entry"]),
    row("a clause that is limited by its label", Kind::Prose, "6. Notice\nThe notice period is two months. Clause 6 does not apply during probation.\n7. Leave\nStaff have 30 days.")
        .keeps("The notice period is two months.", &["Clause 6 does not apply during probation."])
        .leaves(&["30 days"]),
    row("a section that is limited after another sentence", Kind::Prose, "Section 3. Refunds are paid within 14 days. Gift cards are refunded, too.\nSection 3 does not apply to sale items.\nSection 4. Goods travel by post.")
        .keeps("Gift cards are refunded, too.", &["Section 3 does not apply to sale items."])
        .leaves(&["by post"]),
    row("a clause that is limited", Kind::Prose, "2.1 The rent is 80 euros.\n2.2 It is due in May.\n2.3 Clause 2.1 does not apply to barns.")
        .keeps("80 euros", &["barns"]),
    row("a numbered article", Kind::Prose, "Art. 7. Boats are moored at the pier.\nArt. 8. Swimmers keep to the bay.")
        .keeps("Swimmers", &["Art. 8."]).leaves(&["Art. 7."]),
    row("a numbered chapter in German", Kind::Prose, "Kapitel 2. Boote liegen am Steg.\nKapitel 3. Wer badet, bleibt in der Bucht.")
        .keeps("badet", &["Kapitel 3."]).leaves(&["Steg"]),
    row("a numbered section in Polish", Kind::Prose, "Rozdział 2. Łodzie stoją przy molo.\nRozdział 3. Pływacy zostają w zatoce.")
        .keeps("Pływacy", &["Rozdział 3."]).leaves(&["molo"]),
    row("a section of a law", Kind::Prose, "§ 3 Rent\nThe rent is low.\n\n§ 4 Pets\nDogs may stay.")
        .keeps("Dogs", &["§ 4 Pets"]).leaves(&["rent"]),
    row("all of a list", Kind::Prose, "You must bring:\n- a towel\n- a key\n\nThe lake is deep.")
        .keeps("a key", &["must bring", "a towel"]).leaves(&["lake"]),
    row("one of a list", Kind::Prose, "We sell:\n- towels\n- keys").keeps("keys", &["We sell"]).leaves(&["towels"]),
    row("a procedure", Kind::Prose, "1. Fill the pot.\n2. Boil the water.\n3. Wait.").keeps("Boil", &["Fill the pot", "Wait"]),
    row("a list of questions", Kind::Prose, "May I smoke?\nNot in the rooms, but on the terrace.\n\nMay I sing?\nUntil ten in the evening.")
        .keeps("terrace", &["May I smoke?"]).leaves(&["sing"]),
    row("an option of a command", Kind::Prose, "OPTIONS\n  -a, --all\n    Show all tides.\n\n    Slow.\n\n  -b, --brief\n    One line.")
        .keeps("Slow", &["-a, --all", "OPTIONS"]).leaves(&["brief"]),
    row("what stands behind a label", Kind::Prose, "The pump failed in May.\nPaul Orr: I will repair it. You get the bill on Friday.\nThe lamp is new.")
        .keeps("the bill", &["Paul Orr"]).leaves(&["lamp"]),
    row("records of sentences", Kind::Prose, "Symptom: The pump hums.\nCause: The inlet is blocked.\nRemedy: Clean the sieve.\n\nSymptom: The lamp is dark.\nCause: The fuse is burnt.\nRemedy: Change it.")
        .keeps("Clean", &["The pump hums"]).leaves(&["fuse"]),
    row("changes", Kind::Prose, "Added: A lamp for the pier.\nFixed: The pump no longer hums.\nFixed: The gate closes.").keeps("gate", &["gate"]).leaves(&["lamp"]),
    row("records", Kind::Prose, "Name: Ann\nBorn: 1988\nTown: Ulm\n\nName: Bob\nBorn: 1961\nTown: Bern").keeps("1961", &["Name: Bob"]).leaves(&["Ann"]),
    row("justified prose", Kind::Prose, "The keeper of the  light has to trim\nthe lamp  every four hours,  and the\noil  is brought on  Saturday morning.")
        .keeps("lamp", &["keeper", "Saturday"]),
    row("a formula after what introduces it", Kind::Prose, "The flow follows from the level as follows:\nQ = c · h²\nwhere c is 0.6.")
        .keeps("Q =", &["follows"]),
    row("symbols below a formula", Kind::Prose, "The flow is\n\nQ = c · h²\n\nwhere c is the coefficient of the weir. The weir was built in 1912.")
        .keeps("Q =", &["where c is"]),
    row("a status that rules the text", Kind::Markdown, "# Pumps\n\nStatus: superseded by the guide of 2026\n\n## Oil\n\nChange the oil every year.")
        .keeps("oil every", &["# Pumps", "superseded"]),
    row("a banner in German", Kind::Prose, "ENTWURF vom 3. Mai\n\nDie Kurtaxe beträgt 3 Euro. Kinder zahlen nichts.").keeps("Kurtaxe", &["ENTWURF"]).leaves(&["Kinder"]),
    row("headings", Kind::Markdown, "# Ferries\n\n## Fares\n\nDogs are free.\n\n## Times\n\nAt noon.").keeps("Dogs", &["# Ferries", "## Fares"]).leaves(&["Times"]),
    row("the scale of a table", Kind::Table, "## Income\n\n(in thousands of francs)\n\n| | 2025 |\n|---|---|\n| Fares | 812 |\n| Rent | 90 |")
        .keeps("Fares", &["in thousands of francs", "2025", "## Income"]).leaves(&["Rent"]),
    row("a checkbox", Kind::Markdown, "## Before departure\n\n- [x] check the oil\n- [ ] close the hatch").keeps("hatch", &["[ ]", "## Before departure"]).leaves(&["oil"]),
    row("the units above the columns", Kind::Table, "# station North, May\n# flow in litres per minute, level in metres\ntime,pump,flow,level\n06:00,P-1,81,3.1\n06:00,P-2,44,3.0\n06:30,P-1,12,2.8")
        .keeps("06:30", &["litres per minute", "time,pump"]).leaves(&["P-2"]),
    row("columns behind a number sign", Kind::Table, "# hut,owner,keeper\nOben,Lund,Orr\nUnten,Ray,Hill\nMitte,Kay,Fox").keeps("Unten", &["# hut,owner"]).leaves(&["Oben"]),
    row("a row with its columns", Kind::Table, "hut,beds,price\nOben,12,40\nUnten,30,25").keeps("Unten", &["beds"]).leaves(&["Oben"]),
    row("a row of a page of figures", Kind::Pdf, "Year ended March 31,\n2024\n2023\nFares\n48,210\n44,907\nFuel\n(21,330)\n(20,118)\nRent\n90\n85")
        .keeps("Fuel", &["2024", "(20,118)"]).leaves(&["Fares"]),
    row("a setting and its section", Kind::Code, "[pump]\nlevel = 3\n\n[lamp]\nlevel = 5\ncolour = \"red\"").keeps("red", &["[lamp]"]).leaves(&["[pump]"]),
    row("an event and its trace", Kind::Log, "10:00:01 INFO start\n10:00:02 ERROR pump 7 failed\n  at a.B.run(B.java:4)\n  at a.C.run(C.java:9)\n10:00:03 INFO end")
        .keeps("B.java:4", &["pump 7 failed"]).leaves(&["start"]),
    row("an error of a build", Kind::Log, "src/a.c:3:1: error: unknown type\n    3 | foo x;\n      | ^~~\nsrc/b.c:9:2: warning: unused\n    9 | int y;\n      | ^")
        .keeps("unknown type", &["foo x;"]).leaves(&["unused"]),
    row("an answer in a chat", Kind::Chat, "[09:00] Ann: who brings the ladder?\n[09:01] Bob: me\n[09:02] Ann: good\n[09:03] Bob: it rains")
        .keeps("me", &["ladder"]).leaves(&["rains"]),
    row("speakers in a round", Kind::Chat, "Ann: The ferry is full on Monday.\nBob: It is full on Tuesday, too.\nCas: We could take the bus.\nAnn: Then we leave on Friday by bus.\nBob: Fine.\nCas: I buy the tickets.")
        .keeps("Fine", &["on Friday by bus"]).leaves(&["Monday"]),
    row("a short part of a transcript", Kind::Chat, "Ida : Qui répare la pompe ?\nPaul : Moi. J'arrive lundi avant midi.\nIda : Merci Paul.").keeps("lundi", &["Paul", "la pompe"]),
    row("what a speaker takes back", Kind::Chat, "[09:00] Ann: we meet at the north gate\n[09:01] Bob: ok\n[09:02] Cas: I am late\n[09:05] Ann: scratch that, we meet at the mill\n[09:06] Bob: fine")
        .keeps("north gate", &["the mill"]).leaves(&["late"]),
    row("a day in a mail", Kind::Mail, "From: Ann Lee\nTo: Bob\nDate: 3 March 2026\nSubject: Crane\n\nThe crane comes tomorrow. Bring gloves.")
        .keeps("tomorrow", &["3 March 2026", "Ann Lee"]).leaves(&["gloves"]),
    row("a sentence over two cues", Kind::Subtitles, "1\n00:00:01,000 --> 00:00:02,000\nThe mill used\n\n2\n00:00:02,000 --> 00:00:03,000\nten kilowatts.\n\n3\n00:00:04,000 --> 00:00:05,000\nGood.")
        .keeps("ten kilowatts", &["The mill used"]).leaves(&["Good"]),
    row("tags over several lines", Kind::Html, "<h2\n>Fares</h2>\n<p\n>Dogs are free.</p>\n<h2\n>Times</h2>\n<p\n>At noon.</p>").keeps("Dogs", &["Fares"]).leaves(&["Times"]),
    row("a member and its record", Kind::Json, "[{\"name\": \"Oben\", \"beds\": 12},\n {\"name\": \"Unten\", \"beds\": 30}]").keeps("30", &["Unten"]),
    row("a row of an insert without columns", Kind::Code, "CREATE TABLE hut (name text, beds integer);\nINSERT INTO hut VALUES\n('Oben', 12),\n('Unten', 30);")
        .keeps("Unten", &["beds integer"]),
    row("a cell over two rows", Kind::Html, "<table><tr><th>Hut</th><th>Bed</th></tr><tr><td rowspan=\"2\">Oben</td><td>1</td></tr><tr><td>2</td></tr></table>\n<p>The huts are open from May on.</p>")
        .keeps("<td>2</td>", &["Oben"]).fails("a row knows its header and no cell above it"),
    row("a table after a sentence that ends with a stop", Kind::Markdown, "# Fares\n\nAll fares are in francs.\n\n| | 2025 |\n|---|---|\n| Dog | 3 |\n\nThe pier is old.")
        .keeps("Dog", &["in francs"]).fails("only a line in brackets or with a colon rules a table"),
];

#[test]
fn a_part_of_a_text_comes_with_what_it_needs() {
    let mut wrong = Vec::new();
    for row in ROWS {
        match (row.fault(), row.fails) {
            (Some(fault), None) => wrong.push(format!("{}: {fault}", row.name)),
            (None, Some(_)) => wrong.push(format!("{}: passes, and is listed as a row that fails", row.name)),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
