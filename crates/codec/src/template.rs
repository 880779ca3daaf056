//! Lines that are equal but for some fields: a template, its written form, and the lines that it stands for.

/// The signs with which templates and their rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signs {
    /// Begins the number of a template.
    pub tag: char,
    /// Stands before each field of a row.
    pub delimiter: char,
    /// Stand around the fields of a template.
    pub brackets: (char, char),
}

/// The field of a row that equals the field of the row before it.
pub const DITTO: &str = "\"";

/// A line with fields that vary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The texts before, between and after the fields: one more than fields.
    literals: Vec<String>,
    /// The fields of the first line.
    first: Vec<String>,
    pads: Vec<Pad>,
}

/// How the blanks around a field depend on its length, in an aligned column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pad {
    /// Fewer blanks stand before a longer field: the column is aligned to the right.
    pub before: bool,
    /// Fewer blanks stand after a longer field.
    pub after: bool,
}

impl Pad {
    fn letter(self) -> char {
        match (self.before, self.after) {
            (false, false) => '.',
            (true, false) => 'r',
            (false, true) => 'l',
            (true, true) => 'c',
        }
    }

    fn parse(letter: char) -> Option<Self> {
        let (before, after) = match letter {
            '.' => (false, false),
            'r' => (true, false),
            'l' => (false, true),
            'c' => (true, true),
            _ => return None,
        };
        Some(Self { before, after })
    }
}

impl Template {
    /// Creates a template from its first line.
    pub fn new(literals: Vec<String>, first: Vec<String>, pads: Vec<Pad>) -> Self {
        assert_eq!(
            (literals.len(), pads.len()),
            (first.len() + 1, first.len()),
            "literals stand around fields"
        );
        Self { literals, first, pads }
    }

    /// Returns the fields of the first line.
    pub fn first(&self) -> &[String] {
        &self.first
    }

    /// Returns the line with these fields; `None` if their number differs.
    pub fn fill(&self, fields: &[&str]) -> Option<String> {
        if fields.len() != self.first.len() {
            return None;
        }
        let mut line = String::new();
        for (at, literal) in self.literals.iter().enumerate() {
            let before = at.checked_sub(1).filter(|&field| self.pads[field].after);
            let after = Some(at).filter(|&field| field < fields.len() && self.pads[field].before);
            // How much shorter than in the first line a field is, which may be negative.
            let shorter = |field: Option<usize>| {
                let length = |text: &str| text.chars().count() as isize;
                field.map_or(0, |field| length(&self.first[field]) - length(fields[field]))
            };
            let text = literal.trim_matches(' ');
            if text.is_empty() {
                // Within a line, at least one blank divides two columns.
                let least = isize::from(at > 0 && at < fields.len()).min(literal.len() as isize);
                let blanks = literal.len() as isize + shorter(before) + shorter(after);
                push_blanks(&mut line, blanks.max(least))?;
            } else {
                let leading = literal.len() - literal.trim_start_matches(' ').len();
                let trailing = literal.len() - literal.trim_end_matches(' ').len();
                push_blanks(&mut line, (leading as isize + shorter(before)).max(0))?;
                line.push_str(text);
                push_blanks(&mut line, (trailing as isize + shorter(after)).max(0))?;
            }
            line.push_str(fields.get(at).unwrap_or(&""));
        }
        Some(line)
    }

    /// Writes the first line with signs around its fields, as the definition of the template with this number.
    pub fn write(&self, number: usize, signs: Signs) -> String {
        let mut text = format!("{}{number}", signs.tag);
        if self.pads.iter().any(|pad| *pad != Pad::default()) {
            text.extend(self.pads.iter().map(|pad| pad.letter()));
        }
        text.push('=');
        for (at, literal) in self.literals.iter().enumerate() {
            text.push_str(literal);
            if let Some(field) = self.first.get(at) {
                text.push(signs.brackets.0);
                text.push_str(field);
                text.push(signs.brackets.1);
            }
        }
        text
    }

    /// Reads what follows the number of a definition; `None` if it is none.
    pub fn parse(text: &str, signs: Signs) -> Option<Self> {
        let (letters, line) = text.split_once('=')?;
        let (mut literals, mut first) = (Vec::new(), Vec::new());
        let mut rest = line;
        while let Some((literal, after)) = rest.split_once(signs.brackets.0) {
            let (field, after) = after.split_once(signs.brackets.1)?;
            literals.push(literal.to_owned());
            first.push(field.to_owned());
            rest = after;
        }
        literals.push(rest.to_owned());
        let pads: Vec<Pad> = if letters.is_empty() {
            vec![Pad::default(); first.len()]
        } else {
            letters.chars().map(Pad::parse).collect::<Option<_>>()?
        };
        (pads.len() == first.len()).then_some(Self { literals, first, pads })
    }
}

/// The most blanks of a column; more mean that the text is damaged.
const BLANKS_MAX: isize = 1 << 16;

fn push_blanks(line: &mut String, count: isize) -> Option<()> {
    let count = usize::try_from(count).ok().filter(|count| *count <= BLANKS_MAX as usize)?;
    line.extend(std::iter::repeat_n(' ', count));
    Some(())
}
