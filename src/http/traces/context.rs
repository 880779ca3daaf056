//! The headers `traceparent` and `tracestate` of W3C Trace Context: reads those of a request, and writes those for an upstream.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;

use super::TRACER;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The bytes of a `traceparent` of version 00. Later versions may append fields.
const TRACEPARENT_BYTES: usize = 55;

/// The most bytes of `tracestate` that pass. The specification asks for at least so many.
const TRACESTATE_BYTES_MAX: usize = 512;

/// The members of a `tracestate` that is too long are left out first if they have more bytes than this.
const MEMBER_BYTES_LARGE: usize = 128;

/// The context that the headers of a request name. It is empty if `traceparent` is missing, malformed or there twice: a new trace begins then, and
/// `tracestate` is not read either.
pub fn read_context(headers: &HeaderMap) -> Context {
    let nothing = Context::new();
    let mut parents = headers.get_all(&TRACEPARENT).iter();
    let (Some(parent), None) = (parents.next(), parents.next()) else { return nothing };
    if !is_traceparent(parent.as_bytes()) {
        return nothing;
    }
    let states = headers.get_all(&TRACESTATE).iter().filter_map(|state| state.to_str().ok());
    let state = within_limit(states.flat_map(|state| state.split(',')));
    let mut read = HeaderMap::from_iter([(TRACEPARENT, parent.clone())]);
    read.extend(HeaderValue::try_from(state).ok().map(|state| (TRACESTATE, state)));
    TraceContextPropagator::new().extract_with_context(&nothing, &HeaderExtractor(&read))
}

/// Writes the current context into the headers for an upstream. If no traces are exported, the headers stay as they are.
pub fn inject(headers: &mut HeaderMap) {
    let context = Context::current();
    if TRACER.get().is_none() || !context.span().span_context().is_valid() {
        return;
    }
    headers.remove(&TRACESTATE);
    TraceContextPropagator::new().inject_context(&context, &mut HeaderInjector(headers));
    if headers.get(&TRACESTATE).is_some_and(HeaderValue::is_empty) {
        headers.remove(&TRACESTATE);
    }
}

/// Whether a value has the form of `traceparent`. The library accepts numbers of other lengths.
fn is_traceparent(value: &[u8]) -> bool {
    let Some((fields, more)) = value.split_at_checked(TRACEPARENT_BYTES) else { return false };
    let is_field = |(at, byte): (usize, &u8)| match at {
        2 | 35 | 52 => *byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    let is_version_0 = fields.starts_with(b"00");
    let ends = more.is_empty() || !is_version_0 && more.starts_with(b"-");
    ends && !fields.starts_with(b"ff") && fields.iter().enumerate().all(is_field)
}

/// The members of `tracestate` as one value of at most [`TRACESTATE_BYTES_MAX`] bytes: whole members are left out, first the large ones, then
/// those at the end, which are the oldest.
fn within_limit<'a>(members: impl Iterator<Item = &'a str>) -> String {
    let mut members: Vec<&str> = members.map(str::trim).filter(|member| !member.is_empty()).collect();
    let bytes =
        |members: &[&str]| members.iter().map(|member| member.len() + 1).sum::<usize>().saturating_sub(1);
    if bytes(&members) > TRACESTATE_BYTES_MAX {
        members.retain(|member| member.len() <= MEMBER_BYTES_LARGE);
    }
    while bytes(&members) > TRACESTATE_BYTES_MAX {
        members.pop();
    }
    members.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, value.parse().expect("a value"));
        }
        headers
    }

    #[test]
    fn only_a_well_formed_traceparent_is_continued() {
        let check = |values: &[&str], expect: Option<bool>| {
            let lines: Vec<_> = values.iter().map(|value| (TRACEPARENT, *value)).collect();
            let context = read_context(&headers(&lines));
            let span = context.span();
            let found = span.span_context();
            assert_eq!(found.is_valid().then(|| found.is_sampled()), expect, "{values:?}");
        };
        check(&[VALID], Some(true));
        check(&[&VALID.replace("-01", "-00")], Some(false));
        // Unknown flags are ignored, and a later version may have more fields.
        check(&[&VALID.replace("-01", "-03")], Some(true));
        check(&[&format!("cc{}-more", &VALID[2..])], Some(true));
        check(&[], None);
        check(&[VALID, VALID], None);
        check(&[""], None);
        check(&["00-1-2-03"], None);
        check(&[&VALID.to_uppercase()], None);
        check(&[&format!("{VALID}-more")], None);
        check(&[&format!("ff{}", &VALID[2..])], None);
        check(&[&VALID.replace("-01", "-+1")], None);
        check(&[&VALID.replace("-01", "-1")], None);
        check(&["00-00000000000000000000000000000000-b7ad6b7169203331-01"], None);
        check(&["00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"], None);
    }

    #[test]
    fn tracestate_is_joined_and_bounded() {
        let check = |values: &[&str], expect: &str| {
            let mut lines = vec![(TRACEPARENT, VALID)];
            lines.extend(values.iter().map(|value| (TRACESTATE, *value)));
            let context = read_context(&headers(&lines));
            assert_eq!(context.span().span_context().trace_state().header(), expect, "{values:?}");
        };
        check(&[], "");
        check(&["a=1, b=2", "c=3,"], "a=1,b=2,c=3");
        check(&["not a list"], "");
        // More members than the specification allows are left out.
        let many: Vec<String> = (0..33).map(|at| format!("k{at}=1")).collect();
        check(&[&many.join(",")], &many[..32].join(","));
        let large = format!("large={}", "x".repeat(200));
        let small: Vec<String> = (0..9).map(|at| format!("k{at}={}", "x".repeat(60))).collect();
        check(&[&large, "a=1"], &format!("{large},a=1"));
        check(&[&large, &small.join(",")], &small[..8].join(","));
    }
}
