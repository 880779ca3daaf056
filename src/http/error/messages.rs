//! What HTTP answers to mistakes and failures that no layer below it knows of, by area.

use std::time::Duration;

use thresher_core::plain::{Quoted, Shortened};

use crate::error::{ApiError, ErrorCode};
use crate::middleware::find::TooMany;

/// Unknown ids that a message quotes.
const IDS_QUOTED_MAX: usize = 10;

impl ApiError {
    pub(in crate::http) fn not_found() -> Self {
        let message = format!("no such path; served here are {}", crate::http::paths().join(", "));
        Self::new(ErrorCode::NotFound, message)
    }

    pub(in crate::http) fn method_not_allowed() -> Self {
        Self::new(
            ErrorCode::MethodNotAllowed,
            "this path is served under another method; see the Allow header",
        )
    }

    pub(in crate::http) fn body_too_large(bytes_max: usize, setting: &str) -> Self {
        Self::new(
            ErrorCode::BodyTooLarge,
            format!("the body is over the limit of {bytes_max} bytes ({setting})"),
        )
    }

    pub(in crate::http) fn encoding_unsupported() -> Self {
        Self::new(
            ErrorCode::EncodingUnsupported,
            "the body is compressed; send it as it is, without Content-Encoding",
        )
    }

    pub(in crate::http) fn content_type_unsupported() -> Self {
        Self::new(
            ErrorCode::ContentTypeUnsupported,
            "the body has to be JSON: send it with the header Content-Type: application/json",
        )
    }

    /// `rule` says which hosts are accepted, and what the caller can do.
    pub(in crate::http) fn host_not_allowed(host: &str, rule: &str) -> Self {
        Self::new(
            ErrorCode::HostNotAllowed,
            format!("the request names the host {}, and {rule}", Quoted(host)),
        )
    }

    /// For a request without exactly one `Host` header; `found` says what it has.
    pub(in crate::http) fn host_unclear(found: &str) -> Self {
        let message = format!("the request has {found}; send exactly one, with the daemon's host name");
        Self::new(ErrorCode::HostNotAllowed, message)
    }

    pub(in crate::http) fn origin_not_allowed(origin: &str) -> Self {
        let message = format!(
            "the request comes from a web page of {}, which may not ask this daemon; add its origin to http.origins_allowed",
            Quoted(origin)
        );
        Self::new(ErrorCode::OriginNotAllowed, message)
    }

    pub(in crate::http) fn no_room_for_body() -> Self {
        Self::new(
            ErrorCode::Overloaded,
            "the bodies of other requests take all the memory that bodies may take (http.bodies_bytes_max)",
        )
    }

    pub(in crate::http) fn no_room_for_answer() -> Self {
        Self::new(
            ErrorCode::Overloaded,
            "clients have not read other answers yet, which take all the memory that answers may take (http.answers_bytes_max)",
        )
    }

    pub(in crate::http) fn body_timeout() -> Self {
        Self::new(
            ErrorCode::BodyTimeout,
            "the body arrived too slowly: it had not begun, or went on at less than 256 KiB a second (http.read_ms_max)",
        )
    }

    pub(in crate::http) fn body_broken() -> Self {
        Self::new(ErrorCode::BodyBroken, "the connection broke while the body was being read")
    }

    pub(in crate::http) fn registry_not_ready() -> Self {
        Self::new(
            ErrorCode::NotReady,
            "the registry is still being opened; /readyz on the admin listener says when all is ready",
        )
    }

    pub(in crate::http) fn registry_unusable() -> Self {
        Self::new(
            ErrorCode::RegistryUnusable,
            "this tenant's registry cannot be used; the daemon's log says why, and what to do",
        )
    }

    pub(in crate::http) fn chunk_not_found(id: &str) -> Self {
        Self::new(ErrorCode::ChunkNotFound, format!("no chunk {} is registered", Quoted(id)))
    }

    pub(in crate::http) fn path_is_no_text() -> Self {
        Self::new(ErrorCode::ChunkIdInvalid, "the id in the path is not UTF-8, percent-encoded")
    }

    pub(in crate::http) fn page_out_of_range(max: usize) -> Self {
        Self::new(ErrorCode::CountOutOfRange, format!("limit is not a number from 1 to {max}")).at("limit")
    }

    pub(in crate::http) fn ids_empty() -> Self {
        Self::new(ErrorCode::ChunksEmpty, "chunk_ids is empty: name at least one").at("chunk_ids")
    }

    pub(in crate::http) fn ids_too_many(found: usize, max: usize) -> Self {
        let message = format!("{found} chunks, the limit is {max} (limits.registered_chunk_count_max)");
        Self::new(ErrorCode::ChunkTooMany, message).at("chunk_ids")
    }

    pub(in crate::http) fn named_too_long(max: usize) -> Self {
        let message = format!("the chunks have more than {max} bytes of text (limits.registered_bytes_max)");
        Self::new(ErrorCode::InputTooLong, message).at("chunk_ids")
    }

    pub(in crate::http) fn id_twice(id: &str, first: usize, second: usize) -> Self {
        let id = Quoted(id);
        let message = format!("chunk id {id} is named by chunk_ids[{first}] and chunk_ids[{second}]");
        Self::new(ErrorCode::ChunkIdDuplicate, message).at(&format!("chunk_ids[{second}]"))
    }

    /// `missing` are places in `ids`, at least one.
    pub(in crate::http) fn ids_unknown(ids: &[String], missing: &[usize]) -> Self {
        let first: Vec<String> =
            missing.iter().take(IDS_QUOTED_MAX).map(|&place| Quoted(&ids[place]).to_string()).collect();
        let more = missing.len().saturating_sub(IDS_QUOTED_MAX);
        let and = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!("chunk_ids names chunks that are not registered: {}{and}", first.join(", "));
        Self::new(ErrorCode::ChunkUnknown, message).at(&format!("chunk_ids[{}]", missing[0]))
    }

    pub(in crate::http) fn kv_unknown() -> Self {
        let message = "no keys and values are held under this handle: they have expired (kv_export.expire_s), others took their room \
                       (kv_export.bytes_max), or they are another tenant's; compress again";
        Self::new(ErrorCode::KvUnknown, message).at("handle")
    }

    pub(in crate::http) fn kv_off() -> Self {
        let message = "no keys and values are held here: kv_export.bytes_max or kv_export.expire_s is 0";
        Self::new(ErrorCode::KvUnavailable, message).at("include")
    }

    pub(in crate::http) fn kv_too_large(bytes: usize) -> Self {
        let message = format!(
            "the blocks of the kept chunks take {bytes} bytes, more than all that is held (kv_export.bytes_max): name a smaller budget, or hold \
             more"
        );
        Self::new(ErrorCode::KvTooLarge, message).at("include")
    }

    pub(in crate::http) fn model_mismatch(ours: &str, theirs: &str) -> Self {
        let message = format!(
            "these keys and values are of the model with fingerprint {ours}, and are asked for by one with {theirs}: only the same \
             weights can take them over",
            theirs = Shortened(theirs),
        );
        Self::new(ErrorCode::ModelMismatch, message).at("fingerprint")
    }

    pub(in crate::http) fn receipt_failed() -> Self {
        Self::new(
            ErrorCode::ReceiptFailed,
            "the receipt cannot be signed (receipts.key_file); the daemon's log says why",
        )
    }

    pub(in crate::http) fn stream_empty() -> Self {
        Self::new(
            ErrorCode::StreamEmpty,
            "the body holds no event: each is a line that begins with \"data:\" and a blank one; the first is the request, without its answer",
        )
    }

    pub(in crate::http) fn answer_failed() -> Self {
        Self::new(
            ErrorCode::AnswerFailed,
            "an event says that the answer's author failed; sentences that were sure by then have been told",
        )
    }

    pub(in crate::http) fn stream_too_slow(max: Duration) -> Self {
        let message =
            format!("the answer had not arrived after {} s (admission.stream_ms_max)", max.as_secs());
        Self::new(ErrorCode::DeadlineExceeded, message)
    }

    pub(in crate::http) fn stream_silent(max: Duration) -> Self {
        let message =
            format!("nothing of the answer came for {} s (admission.deadline_ms_max)", max.as_secs());
        Self::new(ErrorCode::BodyTimeout, message)
    }

    pub(in crate::http) fn stream_invalid(cause: &str) -> Self {
        Self::new(ErrorCode::StreamEventInvalid, format!("the body is no stream of events: {cause}"))
    }

    pub(in crate::http) fn compress_id_unknown(expire_s: u64) -> Self {
        let message = format!(
            "no request with this id is remembered: it was never answered here, or more than {expire_s} s ago \
             (handles.expire_s), or others took its room (handles.bytes_max); send its chunks instead"
        );
        Self::new(ErrorCode::CompressIdUnknown, message).at("compress_id")
    }

    pub(in crate::http) fn middleware_off() -> Self {
        Self::new(ErrorCode::MiddlewareOff, "no server to ask is named (middleware.upstreams)")
    }

    pub(in crate::http) fn model_unknown(model: &str) -> Self {
        let model = Quoted(model);
        let message = format!("no upstream has the model {model} (middleware.upstreams)");
        Self::new(ErrorCode::ModelUnknown, message).at("model")
    }

    pub(in crate::http) fn too_many_on_their_way(retry_after_s: u64) -> Self {
        let message = "too many requests are on their way to upstream servers; a tenant may have its share of \
                       middleware.request_count_max";
        Self { retry_after_s: Some(retry_after_s), ..Self::new(ErrorCode::Overloaded, message) }
    }

    pub(in crate::http) fn upstream_failed(connecting: bool) -> Self {
        let message = match connecting {
            true => "the server that has this model cannot be reached",
            false => "the server that has this model broke the connection before it answered",
        };
        Self::new(ErrorCode::UpstreamFailed, message)
    }

    pub(in crate::http) fn upstream_silent(max: Duration) -> Self {
        let message = format!(
            "the server that has this model had not begun to answer after {} s (middleware.silence_ms_max)",
            max.as_secs()
        );
        Self::new(ErrorCode::UpstreamSilent, message)
    }

    /// A conversation that is not looked into. The caller says where it stands.
    pub(in crate::http) fn too_many(too_many: TooMany) -> Self {
        Self::new(too_many.code(), too_many.to_string())
    }

    pub(in crate::http) fn brought_too_many(max: usize) -> Self {
        let message = format!("thresher.chunks has more than {max} chunks (middleware.piece_count_max)");
        Self::new(ErrorCode::ChunkTooMany, message).at("thresher.chunks")
    }

    pub(in crate::http) fn header_is_no_choice(name: &'static str) -> Self {
        Self::new(ErrorCode::HeaderInvalid, format!("the header {name} is neither true nor false")).at(name)
    }

    pub(in crate::http) fn invalid_json(cause: &serde_json::Error) -> Self {
        Self::new(ErrorCode::InvalidJson, cause.to_string())
    }

    pub(in crate::http) fn body_is_no_text() -> Self {
        Self::new(ErrorCode::InvalidJson, "the body is not UTF-8")
    }

    pub(in crate::http) fn model_missing() -> Self {
        Self::new(ErrorCode::MissingField, "missing field `model`: it says which server is asked").at("model")
    }

    pub(in crate::http) fn question_missing() -> Self {
        let message = "chunks are put in front of what the user says, and the user says nothing";
        Self::new(ErrorCode::QueryEmpty, message).at("thresher.chunks")
    }

    pub(in crate::http) fn messages_invalid() -> Self {
        Self::new(ErrorCode::WrongType, "invalid type: messages is a list").at("messages")
    }

    pub(in crate::http) fn messages_ambiguous() -> Self {
        let message = "send a question with chunks, or a conversation in `messages`, not both";
        Self::new(ErrorCode::ChunksAmbiguous, message).at("messages")
    }

    pub(in crate::http) fn messages_empty() -> Self {
        Self::new(ErrorCode::MessagesEmpty, "messages is empty: send at least one").at("messages")
    }

    pub(in crate::http) fn message_invalid(at: usize) -> Self {
        Self::new(ErrorCode::WrongType, "invalid type: a message is an object").at(&format!("messages[{at}]"))
    }

    pub(in crate::http) fn original_unknown() -> Self {
        let message = "no text with this hash is kept: it was never shortened here, or others took its room (originals.bytes_max)";
        Self::new(ErrorCode::OriginalUnknown, message)
    }

    pub(in crate::http) fn originals_failed() -> Self {
        Self::new(
            ErrorCode::OriginalsFailed,
            "the store of originals failed (originals.dir); the daemon's log says why",
        )
    }

    pub(in crate::http) fn query_string(cause: &str) -> Self {
        Self::new(ErrorCode::QueryStringInvalid, cause)
    }
}
