//! Forms (`multipart/form-data`, RFC 7578): parsed strictly, and written anew.
//!
//! Servers disagree about forms: about a part with two names, a name with escapes, a line feed before a delimiter, what stands before the
//! first part and after the last one. A form that is sent with a key that all tenants share is therefore not forwarded as it came. The daemon
//! writes each part again from what it read, in the one way that all servers read alike.

use std::fmt::Write as _;

use memchr::memmem;

const PARTS_MAX: usize = 1_000;

const HEAD_BYTES_MAX: usize = 4_096;

/// The most bytes of a delimiter without its hyphens (RFC 2046, 5.1.1).
const BOUNDARY_BYTES_MAX: usize = 70;

/// Encodings of a part that leave its bytes as they are (RFC 7578, 4.7).
const PLAIN_ENCODINGS: [&str; 3] = ["7bit", "8bit", "binary"];

/// A form, borrowed from its body.
#[derive(Debug, PartialEq)]
pub struct Form<'a>(Vec<Part<'a>>);

#[derive(Debug, PartialEq)]
struct Part<'a> {
    name: &'a str,
    /// The name of the file, if the part is one.
    file: Option<&'a str>,
    /// The media type, without parameters.
    kind: Option<&'a str>,
    value: &'a [u8],
}

/// Returns the parameter `boundary` of a content type; `None` if there are several or if it is not plain, and if the type has a charset other
/// than UTF-8.
pub fn boundary(content_type: &str) -> Option<&str> {
    let (_, parameters) = header_value(content_type)?;
    let charset = only(&parameters, "charset")?;
    let boundary = only(&parameters, "boundary")??;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(&byte);
    let is_usable = (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()) && boundary.bytes().all(is_plain);
    (is_usable && charset.is_none_or(|charset| charset.eq_ignore_ascii_case("utf-8"))).then_some(boundary)
}

impl<'a> Form<'a> {
    /// Parses a form. Returns `None` unless it is nothing but parts between delimiters, each with one plain name.
    pub fn parse(body: &'a [u8], boundary: &str) -> Option<Self> {
        let between = format!("\r\n--{boundary}");
        let mut rest = body.strip_prefix(&between.as_bytes()[2..])?;
        let mut parts = Vec::new();
        loop {
            // After the last part, only a line break may follow.
            if let Some(end) = rest.strip_prefix(b"--") {
                return matches!(end, b"" | b"\r\n").then_some(Self(parts));
            }
            if parts.len() == PARTS_MAX {
                return None;
            }
            // The line break after the delimiter is also that before the first header.
            let head_bytes = rest.len().min(HEAD_BYTES_MAX);
            let head_end = memmem::find(&rest[..head_bytes], b"\r\n\r\n")?;
            let head = std::str::from_utf8(rest[..head_end].strip_prefix(b"\r\n")?).ok()?;
            let after = &rest[head_end + 4..];
            let value_end = memmem::find(after, between.as_bytes())?;
            parts.push(Part::new(head, &after[..value_end])?);
            rest = &after[value_end + between.len()..];
        }
    }

    /// Returns the texts of the parts with this name.
    ///
    /// # Errors
    /// Fails if one of them is a file or not UTF-8.
    pub fn texts(&self, name: &str) -> Result<Vec<&'a str>, NotText> {
        let parts = self.0.iter().filter(|part| part.name == name);
        parts
            .map(|part| std::str::from_utf8(part.value).ok().filter(|_| part.file.is_none()).ok_or(NotText))
            .collect()
    }

    /// Returns the names of all parts in their order.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().map(|part| part.name)
    }

    /// Writes the form with another delimiter, which must not be in any value.
    pub fn write(&self, boundary: &str) -> Vec<u8> {
        let values: usize = self.0.iter().map(|part| part.value.len()).sum();
        let mut body = Vec::with_capacity(values + (self.0.len() + 1) * (boundary.len() + 128));
        for part in &self.0 {
            let mut head = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{}\"", part.name);
            if let Some(file) = part.file {
                let file: String =
                    file.chars().map(|letter| if is_of_file(letter) { letter } else { '_' }).collect();
                let kind = part.kind.unwrap_or("application/octet-stream");
                let _ = write!(head, "; filename=\"{file}\"\r\nContent-Type: {kind}");
            }
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(b"\r\n\r\n");
            body.extend_from_slice(part.value);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        body
    }
}

/// A part that has to be a text is a file, or not UTF-8.
#[derive(Debug, PartialEq, Eq)]
pub struct NotText;

impl<'a> Part<'a> {
    fn new(head: &'a str, value: &'a [u8]) -> Option<Self> {
        let (mut disposition, mut kind) = (None, None);
        for line in head.split("\r\n") {
            let (name, text) = line.split_once(':')?;
            let text = text.trim_matches([' ', '\t']);
            let place = match &*name.to_ascii_lowercase() {
                "content-disposition" => &mut disposition,
                "content-type" => &mut kind,
                "content-transfer-encoding"
                    if PLAIN_ENCODINGS.iter().any(|plain| text.eq_ignore_ascii_case(plain)) =>
                {
                    continue;
                }
                // Some clients say how long a part is. Where it ends is what the delimiters say.
                "content-length" => continue,
                _ => return None,
            };
            if place.replace(header_value(text)?).is_some() {
                return None;
            }
        }
        let (disposition, mut parameters) = disposition?;
        let name = only(&parameters, "name")??;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.[]".contains(&byte);
        let is_plain =
            disposition.eq_ignore_ascii_case("form-data") && !name.is_empty() && name.bytes().all(is_name);
        // Some clients send the name of a file a second time, encoded.
        parameters.retain(|(name, _)| !name.eq_ignore_ascii_case("filename*"));
        let file = only(&parameters, "filename")?;
        let kind = kind.map(|(kind, _)| kind);
        is_plain.then_some(Self { name, file, kind, value })
    }
}

/// Whether a letter may stand in the written name of a file: no quotation mark, escape or separator of parameters.
fn is_of_file(letter: char) -> bool {
    letter.is_alphanumeric() || " -_.()[]+,@#&~".contains(letter)
}

/// A header's value, and its parameters in their order. A parameter in quotation marks is without them and has no escapes. `None` if the value
/// has another form.
fn header_value(text: &str) -> Option<(&str, Vec<(&str, &str)>)> {
    let is_token = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"(),:;<=>?@[\\]{}".contains(&byte))
    };
    let is_value = |text: &str| text.split('/').all(is_token);
    let (value, mut rest) = text.split_at(text.find(';').unwrap_or(text.len()));
    let mut parameters = Vec::new();
    while let Some(parameter) = rest.strip_prefix(';') {
        let (name, value) = parameter.trim_start_matches([' ', '\t']).split_once('=')?;
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => value.split_at(value.find(';').unwrap_or(value.len())),
        };
        if !is_token(name) || value.contains(|letter: char| letter == '\\' || letter.is_control()) {
            return None;
        }
        parameters.push((name, value.trim_end_matches([' ', '\t'])));
        rest = after.trim_start_matches([' ', '\t']);
    }
    (rest.is_empty() && is_value(value.trim_end_matches([' ', '\t'])))
        .then(|| (value.trim_end_matches([' ', '\t']), parameters))
}

/// The parameter with this name, if there is one. `None` if there are several, also in the forms `name*` and `name*0` (RFC 2231).
fn only<'a>(parameters: &[(&str, &'a str)], name: &str) -> Option<Option<&'a str>> {
    let of_name = |(found, _): &&(&str, &str)| {
        let base = found.split('*').next().unwrap_or_default();
        base.eq_ignore_ascii_case(name)
    };
    let mut found = parameters.iter().filter(of_name);
    match (found.next(), found.next()) {
        (None, _) => Some(None),
        (Some((found, value)), None) if !found.contains('*') => Some(Some(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_type_has_one_plain_boundary() {
        let check = |kind: &str, expect: Option<&str>| assert_eq!(boundary(kind), expect, "{kind}");
        check("multipart/form-data; boundary=a-1", Some("a-1"));
        check("multipart/form-data;boundary=\"a-1\"; charset=UTF-8", Some("a-1"));
        check("multipart/form-data; Boundary=a ;x=y", Some("a"));
        check("multipart/form-data", None);
        check("multipart/form-data; boundary=", None);
        check("multipart/form-data; boundary=a; boundary=b", None);
        check("multipart/form-data; boundary=a; boundary*=utf-8''b", None);
        check("multipart/form-data; boundary*0=a; boundary*1=b", None);
        check("multipart/form-data; boundary=\"a\\b\"", None);
        check("multipart/form-data; boundary=a; charset=utf-7", None);
        check("multipart/form-data; boundary=a, application/json", None);
        check(&format!("multipart/form-data; boundary={}", "a".repeat(71)), None);
    }

    const WRITTEN: &str = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n";

    #[test]
    fn a_form_is_written_anew_or_refused() {
        let check = |name: &str, body: &str, expect: Option<&str>| {
            let form = Form::parse(body.as_bytes(), "e");
            let written = form.map(|form| String::from_utf8(form.write("b")).expect("text"));
            assert_eq!(written.as_deref(), expect, "{name}");
        };
        let part = |head: &str, value: &str| format!("--e\r\n{head}\r\n\r\n{value}\r\n--e--\r\n");
        let model = |disposition: &str| part(&format!("content-disposition: {disposition}"), "m");
        check("a text", &model("form-data; name=\"model\""), Some(WRITTEN));
        check("a name without quotation marks", &model("Form-Data;name=model"), Some(WRITTEN));
        check("no line break at the end", model("form-data; name=model").trim_end(), Some(WRITTEN));
        check("a parameter that servers ignore", &model("form-data; name=model; x=y"), Some(WRITTEN));
        let typed = "content-disposition: form-data; name=\"model\"\r\nContent-Type: text/plain; charset=utf-16\r\nContent-Length: 9";
        check("a text with a type", &part(typed, "m"), Some(WRITTEN));
        let file = |name: &str| {
            part(
                &format!(
                    "Content-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\nContent-Type: image/png;a=b"
                ),
                "\n--e\n--b",
            )
        };
        let written = |name: &str| {
            format!(
                "--b\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\nContent-Type: image/png\r\n\r\n\n--e\n--b\r\n--b--\r\n"
            )
        };
        check("a file", &file("Bär 1.png"), Some(&written("Bär 1.png")));
        check("a file with signs", &file("a; name=model;%22.png"), Some(&written("a_ name_model__22.png")));
        let twice = file("a.png").replace("a.png\"", "a.png\"; filename*=utf-8''%61.png");
        check("a file with an encoded name", &twice, Some(&written("a.png")));
        check("no part", "--e--\r\n", Some("--b--\r\n"));
        for disposition in [
            "form-data; name=\"x\"; name=\"model\"",
            "form-data; name=\"x\"; name*=utf-8''model",
            "form-data; name*0=\"mo\"; name*1=\"del\"",
            "form-data; name=\"mo\\del\"",
            "form-data; name=\"model\" x",
            "form-data; name=\"mo%64el\"",
            "form-data; name=\"model;\"",
            "form-data; name=\" model\"",
            "form-data; name=\"\"",
            "form-data",
            "attachment; name=\"model\"",
            "form-data; name=\"image\"; filename=\"a\"; filename=\"b\"",
        ] {
            check(disposition, &model(disposition), None);
        }
        let plain = "content-disposition: form-data; name=\"x\"";
        check("two names in two headers", &part(&format!("{plain}\r\n{plain}"), "m"), None);
        check("a folded header", &part(&format!("{plain};\r\n name=\"model\""), "m"), None);
        check("a header with a line feed", &part(&format!("{plain}\nx: y"), "m"), None);
        check("an encoding", &part(&format!("{plain}\r\ncontent-transfer-encoding: base64"), "m"), None);
        check("an unknown header", &part(&format!("{plain}\r\nx: y"), "m"), None);
        let whole = model("form-data; name=\"x\"");
        check("something before", &format!("\r\n{whole}"), None);
        check("something after", &format!("{whole}--c"), None);
        check("a space after the delimiter", &whole.replace("--e\r\n", "--e \r\n"), None);
        check("no end", whole.trim_end_matches("--\r\n"), None);
        check("no delimiter at all", "{}", None);
        let many = format!("--e\r\n{plain}\r\n\r\n\r\n").repeat(PARTS_MAX + 1) + "--e--";
        check("too many parts", &many, None);
        check("a long head", &part(&format!("{plain}; y={}", "z".repeat(HEAD_BYTES_MAX)), "m"), None);
    }

    #[test]
    fn a_text_is_no_file_and_utf8() {
        let texts = |head: &str, value: &[u8]| {
            let body = [
                format!("--e\r\ncontent-disposition: form-data; {head}\r\n\r\n").as_bytes(),
                value,
                b"\r\n--e--",
            ]
            .concat();
            let form = Form::parse(&body, "e").expect("a form");
            form.texts("model").map(|texts| texts.concat())
        };
        assert_eq!(texts("name=model", "ü".as_bytes()), Ok("ü".to_owned()));
        assert_eq!(texts("name=model; filename=x", b"m"), Err(NotText));
        assert_eq!(texts("name=model", b"\xff"), Err(NotText));
        assert_eq!(texts("name=other", b"m"), Ok(String::new()));
    }
}
