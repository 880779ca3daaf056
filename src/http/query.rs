//! Reads the parameters of a URL's query string by their names.

use percent_encoding::percent_decode_str;

use crate::error::ApiError;

/// The values of the parameters `names`, in their order; none for a parameter that is not given.
///
/// # Errors
/// `wrong_type` for another parameter, and for one that is given twice.
pub fn parameters<const N: usize>(
    query: Option<&str>,
    names: [&'static str; N],
) -> Result<[Option<String>; N], ApiError> {
    let mut found = [const { None }; N];
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decoded(name);
        let Some(index) = names.iter().position(|known| *known == name) else {
            return Err(ApiError::query_unknown(&name, &names));
        };
        if found[index].replace(decoded(value)).is_some() {
            return Err(ApiError::query_duplicate(names[index]));
        }
    }
    Ok(found)
}

/// A name or a value as it was before `application/x-www-form-urlencoded`.
fn decoded(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_by_name() {
        let check = |query: Option<&str>, expect: Result<[Option<&str>; 2], &str>| {
            let found = parameters(query, ["limit", "after"]);
            let found = found.as_ref().map(|found| found.each_ref().map(|value| value.as_deref()));
            assert_eq!(found.map_err(|error| error.param.as_deref().expect("a name")), expect, "{query:?}");
        };
        check(None, Ok([None, None]));
        check(Some(""), Ok([None, None]));
        check(Some("after=a%20b+c&limit=3"), Ok([Some("3"), Some("a b c")]));
        check(Some("after"), Ok([None, Some("")]));
        check(Some("&%61fter=%ff&"), Ok([None, Some("\u{fffd}")]));
        check(Some("limit=1&limit=1"), Err("limit"));
        check(Some("lim=1"), Err("lim"));
    }
}
