//! What HTTP answers to mistakes and failures that the layers below do not know of, by area.

use std::error::Error;
use std::io;
use std::time::Duration;

use thresher_core::plain::{Quoted, Shortened};

use crate::error::{ApiError, ErrorCode};
use crate::middleware::find::TooMany;

const IDS_QUOTED_MAX: usize = 10;

/// The request itself: path, host, origin and query string.
impl ApiError {
    pub(in crate::http) fn not_found(paths: &[&str]) -> Self {
        Self::new(ErrorCode::NotFound, format!("no such path; this listener serves {}", paths.join(", ")))
    }

    /// For a path that may be that of a model's API, if there is no upstream.
    pub(in crate::http) fn not_forwarded() -> Self {
        let message = "no such path; a path of a model's API is forwarded only if there is an upstream: set middleware.upstreams";
        Self::new(ErrorCode::NotFound, message)
    }

    pub(in crate::http) fn method_not_allowed() -> Self {
        Self::new(
            ErrorCode::MethodNotAllowed,
            "this path does not take this method; the Allow header lists those it takes",
        )
    }

    /// `rule` says which hosts are accepted, and what the caller can do.
    pub(in crate::http) fn host_not_allowed(host: &str, rule: &str) -> Self {
        let message = format!("the request names the host {}, and {rule}", Quoted(host));
        Self::new(ErrorCode::OriginNotAllowed, message)
    }

    /// For a request without exactly one `Host` header; `found` says what it has.
    pub(in crate::http) fn host_unclear(found: &str) -> Self {
        let message = format!("the request has {found}; send exactly one, with the daemon's host name");
        Self::new(ErrorCode::OriginNotAllowed, message)
    }

    /// `page` says which page sends the request, `rule` which pages may, and what the caller can do.
    pub(in crate::http) fn origin_not_allowed(page: &str, rule: &str) -> Self {
        Self::new(ErrorCode::OriginNotAllowed, format!("the request comes from {page}, and {rule}"))
    }

    pub(in crate::http) fn query_unknown(name: &str, known: &[&str]) -> Self {
        let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
        let message = format!("unknown query parameter {}, expected {}", Quoted(name), known.join(" or "));
        Self::with_param(ErrorCode::WrongType, message, Shortened(name).to_string())
    }

    pub(in crate::http) fn query_duplicate(name: &str) -> Self {
        let message = format!("the query parameter `{name}` is given twice; give it once");
        Self::with_param(ErrorCode::WrongType, message, name)
    }

    pub(in crate::http) fn query_not_boolean(name: &str, found: &str) -> Self {
        let message = format!("the query parameter `{name}` is {}; it must be true or false", Quoted(found));
        Self::with_param(ErrorCode::WrongType, message, name)
    }

    pub(in crate::http) fn header_not_boolean(name: &'static str) -> Self {
        let message = format!("the header {name} is neither true (1, yes, on) nor false (0, no, off)");
        Self::with_param(ErrorCode::InvalidValue, message, name)
    }
}

/// Bodies of requests, and memory for bodies and answers.
impl ApiError {
    /// `found` is the body's media type, where it has one; `taken` are those that the path takes.
    pub(in crate::http) fn content_type_unsupported(found: Option<&str>, taken: &str) -> Self {
        let found = match found {
            Some(found) => format!("the body is sent as {}", Shortened(found)),
            None => "the body is sent without a content type".to_owned(),
        };
        let message = format!("{found}; send it with the header Content-Type: {taken}");
        Self::new(ErrorCode::ContentTypeUnsupported, message)
    }

    /// For a body that is not JSON, on a path that takes other bodies with a key.
    pub(in crate::http) fn or_send_key(self) -> Self {
        let message = format!(
            "{}, or send it with the header Authorization or x-api-key, since web pages can send such bodies to any server",
            self.message
        );
        Self { message, ..self }
    }

    pub(in crate::http) fn encoding_unsupported() -> Self {
        let message = "the body is compressed; send it uncompressed, without the header Content-Encoding";
        Self::new(ErrorCode::ContentTypeUnsupported, message)
    }

    pub(in crate::http) fn body_too_large(bytes_max: usize) -> Self {
        let message = format!("the body is larger than {bytes_max} bytes");
        Self::new(ErrorCode::BodyTooLarge, message)
    }

    pub(in crate::http) fn body_timeout() -> Self {
        let message = "the body arrived too slowly; send it at 256 KiB a second or more";
        Self::new(ErrorCode::BodyTimeout, message)
    }

    /// For a body that ended before it was whole.
    pub(in crate::http) fn body_broken(cause: &(dyn Error + 'static)) -> Self {
        let mut causes = std::iter::successors(Some(cause), |&error| error.source());
        let is_invalid = causes.any(|cause| {
            let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
            matches!(kind, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData))
        });
        let message = if is_invalid {
            "the framing of the body is invalid: with Transfer-Encoding: chunked, each chunk begins with its size in hexadecimal"
        } else {
            "the connection broke before the whole body had arrived"
        };
        Self::new(ErrorCode::BodyBroken, message)
    }

    pub(in crate::http) fn body_not_utf8() -> Self {
        Self::new(ErrorCode::InvalidJson, "the body is not UTF-8")
    }

    pub(in crate::http) fn invalid_json(cause: &serde_json::Error) -> Self {
        Self::new(ErrorCode::InvalidJson, format!("the body is not JSON: {cause}"))
    }

    pub(in crate::http) fn body_memory_full() -> Self {
        let message = "the bodies of other requests take all the memory for bodies (memory_bytes_max); repeat the request later";
        Self::new(ErrorCode::Overloaded, message)
    }

    pub(in crate::http) fn answer_memory_full() -> Self {
        let message = "answers that other clients have not read yet take all the memory for answers (memory_bytes_max); repeat the \
                       request later";
        Self::new(ErrorCode::Overloaded, message)
    }
}

/// Errors about registered chunks.
impl ApiError {
    pub(crate) fn model_not_ready() -> Self {
        let message = "the model is still loading; /readyz on the admin listener says when it is done";
        Self::new(ErrorCode::NotReady, message)
    }

    pub(in crate::http) fn registry_not_ready() -> Self {
        let message =
            "the registry is still being opened; /readyz on the admin listener says when it is open";
        Self::new(ErrorCode::NotReady, message)
    }

    pub(in crate::http) fn registry_unusable() -> Self {
        let message = "this tenant's registry cannot be used; the daemon's log says why, and what to do";
        Self::new(ErrorCode::StorageFailed, message)
    }

    pub(in crate::http) fn chunk_not_found(id: &str) -> Self {
        Self::new(ErrorCode::IdUnknown, format!("no chunk with the id {} is registered", Quoted(id)))
    }

    pub(in crate::http) fn path_not_utf8() -> Self {
        Self::new(ErrorCode::InvalidValue, "the id in the path is not UTF-8; percent-encode its bytes")
    }

    pub(in crate::http) fn page_out_of_range(found: &str, max: usize) -> Self {
        let message = format!("limit is {}; it must be a whole number from 1 to {max}", Quoted(found));
        Self::with_param(ErrorCode::OutOfRange, message, "limit")
    }

    pub(in crate::http) fn ids_empty() -> Self {
        let message = "chunk_ids is empty: send at least one id";
        Self::with_param(ErrorCode::FieldEmpty, message, "chunk_ids")
    }

    pub(in crate::http) fn ids_too_many(found: usize, max: usize) -> Self {
        let message = format!("chunk_ids has {found} ids; the limit is {max}");
        Self::with_param(ErrorCode::TooMany, message, "chunk_ids")
    }

    pub(in crate::http) fn ids_too_long(max: usize) -> Self {
        let message =
            format!("the chunks that chunk_ids names have more than {max} bytes of text; name fewer of them");
        Self::with_param(ErrorCode::TooLong, message, "chunk_ids")
    }

    pub(in crate::http) fn id_duplicate(id: &str, first: usize, second: usize) -> Self {
        let message = format!("chunk_ids[{first}] and chunk_ids[{second}] are both {}", Quoted(id));
        Self::with_param(ErrorCode::Duplicate, message, format!("chunk_ids[{second}]"))
    }

    /// `missing` are positions in `ids`, at least one.
    pub(in crate::http) fn ids_unknown(ids: &[String], missing: &[usize]) -> Self {
        let first = missing.iter().take(IDS_QUOTED_MAX).map(|&index| Quoted(&ids[index]).to_string());
        let first: Vec<String> = first.collect();
        let more = missing.len().saturating_sub(IDS_QUOTED_MAX);
        let and = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!("chunk_ids names chunks that are not registered: {}{and}", first.join(", "));
        Self::with_param(ErrorCode::ChunkUnknown, message, format!("chunk_ids[{}]", missing[0]))
    }

    pub(in crate::http) fn compress_id_unknown(expire_s: u64) -> Self {
        let message = format!(
            "no recent compression has this id: this daemon did not give it, or it expired after {expire_s} s, or newer \
             ones took its memory (memory_bytes_max); send its chunks instead"
        );
        Self::with_param(ErrorCode::IdUnknown, message, "compress_id")
    }
}

/// Keys and values, and receipts.
impl ApiError {
    pub(in crate::http) fn kv_unknown() -> Self {
        let message = "no keys and values are stored under this handle: they expired, newer ones took their memory \
                       (memory_bytes_max), or they are another tenant's; compress again";
        Self::with_param(ErrorCode::IdUnknown, message, "handle")
    }

    pub(in crate::http) fn kv_too_large(bytes: usize, max: usize) -> Self {
        let message = format!(
            "the keys and values of the kept chunks take {bytes} bytes; all exports together may take {max} (memory_bytes_max). Keep \
             fewer chunks, encode fewer tokens again (kv.recompute), or raise the limit"
        );
        Self::with_param(ErrorCode::TooLong, message, "kv")
    }

    pub(in crate::http) fn model_mismatch(ours: &str, theirs: &str) -> Self {
        let message = format!(
            "these keys and values are of the model with the fingerprint {ours}, and the request names {}; only a model with the same \
             weights can use them",
            Shortened(theirs)
        );
        Self::with_param(ErrorCode::ModelMismatch, message, "fingerprint")
    }

    pub(in crate::http) fn receipt_failed() -> Self {
        let message = "the receipt cannot be signed (receipts.key_file); the daemon's log says why";
        Self::new(ErrorCode::Internal, message)
    }
}

/// Conversations, and the middleware in front of language models.
impl ApiError {
    /// `found` is the JSON of the field.
    pub(in crate::http) fn messages_not_list(found: &str) -> Self {
        let message = format!("messages is {}; it must be a list of messages", Shortened(found));
        Self::with_param(ErrorCode::WrongType, message, "messages")
    }

    pub(in crate::http) fn conversation_budget() -> Self {
        let message =
            "conversations have no field `budget`; set config.target_ratio to the share of tokens to keep";
        Self::with_param(ErrorCode::UnknownField, message, "budget")
    }

    pub(in crate::http) fn message_not_object(index: usize) -> Self {
        let param = format!("messages[{index}]");
        Self::with_param(ErrorCode::WrongType, format!("{param} is not an object"), param)
    }

    pub(in crate::http) fn no_field_of_conversations(field: &str) -> Self {
        let message = format!(
            "a conversation has no field `{field}`; chunks and their question go to POST /v1/compress"
        );
        Self::with_param(ErrorCode::UnknownField, message, field)
    }

    pub(in crate::http) fn messages_missing() -> Self {
        let message = "missing field `messages`; chunks go to POST /v1/compress";
        Self::with_param(ErrorCode::MissingField, message, "messages")
    }

    pub(in crate::http) fn messages_empty() -> Self {
        Self::with_param(ErrorCode::FieldEmpty, "messages is empty: send at least one", "messages")
    }

    /// `param` is the place of the count.
    pub(in crate::http) fn frozen_too_many(count: usize, message_count: usize, param: String) -> Self {
        let message = format!(
            "{param} is {count}, and the conversation has {message_count} messages; freeze at most all of them"
        );
        Self::with_param(ErrorCode::OutOfRange, message, param)
    }

    pub(in crate::http) fn session_id_invalid(chars_max: usize, param: &str) -> Self {
        let message = format!("{param} is blank or longer than {chars_max} characters");
        Self::with_param(ErrorCode::InvalidValue, message, param)
    }

    /// A conversation that holds more than is compressed.
    pub(in crate::http) fn too_many(too_many: TooMany) -> Self {
        Self::new(too_many.code(), too_many.to_string())
    }

    pub(in crate::http) fn middleware_off() -> Self {
        let message = "this daemon has no upstream to pass the request on to; set middleware.upstreams";
        Self::new(ErrorCode::NotFound, message)
    }

    pub(in crate::http) fn model_missing() -> Self {
        let message = "missing field `model`: it chooses the upstream";
        Self::with_param(ErrorCode::MissingField, message, "model")
    }

    /// For a request that names neither a model nor an upstream, if there are several upstreams.
    pub(in crate::http) fn upstream_unclear(header: &str) -> Self {
        let message = format!(
            "missing field `model`: it chooses the upstream. A request that has no model in a JSON body or in its path names the upstream's host or \
             URL in the header {header}"
        );
        Self::with_param(ErrorCode::MissingField, message, "model")
    }

    pub(in crate::http) fn upstream_unknown(header: &'static str, name: &str) -> Self {
        let message = format!(
            "the header {header} names {}, which is no upstream (middleware.upstreams)",
            Quoted(name)
        );
        Self::with_param(ErrorCode::InvalidValue, message, header)
    }

    pub(in crate::http) fn path_not_forwarded(method: &str, path: &str) -> Self {
        let message = format!(
            "{method} {} is not forwarded, because the upstream is called with a key of the operator (key_file), with which tenants could reach \
             what others have stored; the setting `paths` of the upstream allows it",
            Quoted(path)
        );
        Self::new(ErrorCode::NotFound, message)
    }

    pub(in crate::http) fn state_not_forwarded(field: &str, path: &str) -> Self {
        let message = format!(
            "{} reads or writes what the provider stores, and the upstream is called with a key of the operator (key_file), with which tenants \
             could reach what others have stored; send the whole conversation instead, or have {} named in the setting `paths` of the upstream",
            Quoted(field),
            Quoted(path)
        );
        Self::with_param(ErrorCode::Unavailable, message, field)
    }

    pub(in crate::http) fn models_several() -> Self {
        let message = "the body names several models, in the field `model` in different cases; name one";
        Self::with_param(ErrorCode::DuplicateField, message, "model")
    }

    pub(in crate::http) fn model_in_query() -> Self {
        let message = "a parameter of the URL names a model, and the upstream is called with a key of the operator (key_file); name the model in \
                       the field `model` of the body";
        Self::with_param(ErrorCode::InvalidValue, message, "model")
    }

    pub(in crate::http) fn model_not_allowed(field: &str, model: &str) -> Self {
        let message = format!(
            "{} names the model {}, which is none of this upstream (models); the upstream is called with a key of the operator (key_file)",
            Quoted(field),
            Quoted(model)
        );
        Self::with_param(ErrorCode::ModelUnknown, message, field)
    }

    pub(in crate::http) fn body_not_readable() -> Self {
        let message = "the upstream is called with a key of the operator (key_file), so the body must be one that all servers read alike: an object \
                       in JSON or a form (multipart/form-data), with one content type, in UTF-8, and each part of a form with one plain name";
        Self::new(ErrorCode::ContentTypeUnsupported, message)
    }

    pub(in crate::http) fn model_not_text() -> Self {
        let message = "model is not a string; it names the model that chooses the upstream";
        Self::with_param(ErrorCode::WrongType, message, "model")
    }

    pub(in crate::http) fn model_unknown(model: &str) -> Self {
        let message = format!("no upstream has the model {} (middleware.upstreams)", Quoted(model));
        Self::with_param(ErrorCode::ModelUnknown, message, "model")
    }

    pub(in crate::http) fn middleware_chunks_too_many(max: usize) -> Self {
        let message = format!("thresher.chunks has more than {max} chunks");
        Self::with_param(ErrorCode::TooMany, message, "thresher.chunks")
    }

    pub(in crate::http) fn question_missing() -> Self {
        let message =
            "thresher.chunks is put before the user's message, and the conversation has none with text";
        Self::with_param(ErrorCode::FieldEmpty, message, "thresher.chunks")
    }

    pub(in crate::http) fn upstream_requests_too_many(retry_after_s: u64) -> Self {
        let message = "too many requests to upstreams are in flight; each tenant may have a part of them; repeat the request later";
        Self { retry_after_s: Some(retry_after_s), ..Self::new(ErrorCode::Overloaded, message) }
    }

    pub(in crate::http) fn upstream_answer_unusable(reason: &str) -> Self {
        Self::new(ErrorCode::UpstreamFailed, format!("the upstream answered {reason}"))
    }

    pub(in crate::http) fn upstream_failed(is_connecting: bool) -> Self {
        let message = if is_connecting {
            "the upstream that has this model cannot be reached; the daemon's log says why"
        } else {
            "the upstream that has this model broke the connection before it answered"
        };
        Self::new(ErrorCode::UpstreamFailed, message)
    }

    pub(in crate::http) fn input_over_cap(tokens: usize, max: usize, is_shorter: bool, field: &str) -> Self {
        let after = if is_shorter { " after compression" } else { "" };
        let message = format!(
            "the request has {tokens} tokens{after}; the limit is {max} (input_tokens_max of the upstream). Send a shorter conversation, or let more of it be compressed: ask for it with x-thresher-compress: true, name tools in \
             middleware.tools, and send texts as documents or between the delimiters of a context"
        );
        Self::with_param(ErrorCode::TooLong, message, field)
    }

    pub(in crate::http) fn upstream_loop() -> Self {
        let message = "the request came back to this daemon: an upstream (middleware.upstreams) leads back here; set its url to the server of the model";
        Self::new(ErrorCode::UpstreamLoop, message)
    }

    pub(in crate::http) fn hops_too_many(count: usize) -> Self {
        let message = format!(
            "the request went through {count} daemons before this one, which is the most; set middleware.upstreams of one of them to the server \
             of the model"
        );
        Self::new(ErrorCode::UpstreamLoop, message)
    }

    pub(in crate::http) fn upstream_silent(max: Duration) -> Self {
        let message =
            format!("the upstream that has this model did not begin to answer within {} s", max.as_secs());
        Self::new(ErrorCode::UpstreamSilent, message)
    }

    pub(in crate::http) fn retrieve_query_blank() -> Self {
        let message = "query is blank; leave it out to get only the original text";
        Self::with_param(ErrorCode::FieldEmpty, message, "query")
    }

    pub(in crate::http) fn original_unknown() -> Self {
        let message = "no text is stored under this hash: this daemon never shortened it, or newer texts took its space \
                       (originals.bytes_max)";
        Self::new(ErrorCode::IdUnknown, message)
    }

    pub(in crate::http) fn originals_failed() -> Self {
        let message = "the store of original texts failed (originals.dir); the daemon's log says why";
        Self::new(ErrorCode::StorageFailed, message)
    }
}
