//! Which paths of a model's API may be forwarded without being read.

/// The paths that are forwarded with an operator's key unless the settings name more: those that compute an answer from the request alone.
/// Others, such as files and batches, would show one tenant what another one has stored with the same key.
const STATELESS: [&str; 12] = [
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/images/edits",
    "/v1/images/generations",
    "/v1/images/variations",
    "/v1/messages/count_tokens",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/responses/input_tokens",
];

/// Those of them whose bodies are forms.
const FORMS: [&str; 4] =
    ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations"];

/// The path of models, which the id of one follows.
pub const MODELS: &str = "/v1/models/";

/// The path that a server sees, decoded and without a slash at its end. `None` if servers may read it in different ways: if a segment is
/// empty, `.` or `..`, also before a `;`, or has a backslash, or an encoded slash that is not in the id of a model; and if the path is encoded
/// twice, or has letters that some servers take for a dot or a slash.
pub fn decoded(path: &str) -> Option<String> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
    let may_encode_slashes = decoded.starts_with(MODELS);
    let has_encoded_slash = decoded.matches('/').count() != path.matches('/').count();
    let is_plain = |segment: &str| {
        let name = segment.split(';').next().unwrap_or_default();
        !["", ".", ".."].contains(&name)
            && !segment
                .contains(|letter: char| "\\%".contains(letter) || letter.is_control() || !letter.is_ascii())
    };
    let is_plain = decoded.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_plain));
    (is_plain && (!has_encoded_slash || may_encode_slashes)).then(|| decoded.into_owned())
}

/// Returns whether a request may be forwarded with an operator's key: if its path is stateless, or one of `more`, in which a `*` at the end
/// matches any ending.
pub fn may_use_key(method: &str, path: &str, more: &[String]) -> bool {
    method == "POST" && is_stateless(path)
        || ["GET", "HEAD"].contains(&method) && path.starts_with(MODELS)
        || is_named(path, more)
}

/// Returns whether a stateless path takes a form (`multipart/form-data`).
pub fn takes_form(path: &str) -> bool {
    FORMS.contains(&path)
}

/// Returns whether requests to a path compute an answer from their body alone.
pub fn is_stateless(path: &str) -> bool {
    STATELESS.contains(&path)
}

/// Returns whether a path is one of these, in which a `*` at the end matches any ending.
pub fn is_named(path: &str, paths: &[String]) -> bool {
    paths.iter().any(|named| match named.strip_suffix('*') {
        Some(beginning) => path.starts_with(beginning),
        None => path == named,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_decoded_if_all_servers_read_it_alike() {
        let check = |path: &str, expect: Option<&str>| assert_eq!(decoded(path).as_deref(), expect, "{path}");
        check("/v1/embeddings", Some("/v1/embeddings"));
        check("/v1/embeddings/", Some("/v1/embeddings"));
        check("/v1/%65mbeddings", Some("/v1/embeddings"));
        check("/v1/files/a%20b", Some("/v1/files/a b"));
        check("/v1/models/a/b", Some("/v1/models/a/b"));
        check("/v1/models/a%2Fb", Some("/v1/models/a/b"));
        for path in [
            "/v1/../admin",
            "/v1/%2e%2e/admin",
            "/v1/.%2E/admin",
            "/v1/./compress",
            "/v1//compress",
            "/v1/files//",
            "/v1/files/a%2Fb",
            "/v1/%2F%2Fhost/",
            "/v1/files/..%5Cadmin",
            "/v1/files/a%5cb",
            "/v1/models/..%2F..%2Fadmin",
            "/v1/models/%2e%2e/files",
            "/v1/models/a%2F%2Fb",
            "/v1/files/%ff",
            "/v1/files/%0a",
            "/v1/models/a%2f..;%2ffiles",
            "/v1/models/..;/files",
            "/v1/models/.;x/files",
            "/v1/models/a%252f..%252ffiles",
            "/v1/models/a%2f%EF%BC%8E%EF%BC%8E%2ffiles",
            "/v1/models/%E2%80%A5/files",
            "",
        ] {
            check(path, None);
        }
    }

    #[test]
    fn an_operators_key_is_for_stateless_paths_and_those_that_are_named() {
        let check = |call: &str, more: &[&str], expect: bool| {
            let (method, path) = call.split_once(' ').expect("a method and a path");
            let more: Vec<String> = more.iter().map(|&named| named.to_owned()).collect();
            assert_eq!(may_use_key(method, path, &more), expect, "{call} {more:?}");
        };
        check("POST /v1/embeddings", &[], true);
        check("POST /v1/messages/count_tokens", &[], true);
        check("GET /v1/models/gpt-5", &[], true);
        check("DELETE /v1/models/gpt-5", &[], false);
        check("GET /v1/embeddings", &[], false);
        for call in [
            "GET /v1/files",
            "POST /v1/files",
            "DELETE /v1/files/f1",
            "POST /v1/batches",
            "GET /v1/responses/r1",
        ] {
            check(call, &[], false);
            check(call, &["*"], true);
        }
        check("DELETE /v1/files/f1", &["/v1/files*"], true);
        check("POST /v1/batches", &["/v1/files*"], false);
        check("GET /v1/files", &["/v1/files"], true);
        check("GET /v1/files/f1", &["/v1/files"], false);
    }
}
