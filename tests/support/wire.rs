//! A minimal HTTP/1.1 client. A test decides on every byte of a request, so it can send what no client
//! library would send.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A response that was read to its end.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Names, in lower case, and values.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }
}

/// How a request declares the length of its body.
#[derive(Debug, Clone, Copy)]
pub enum Framing {
    ContentLength,
    Chunked,
}

/// Sends a GET request and reads the whole response.
pub async fn get(address: SocketAddr, path: &str) -> Response {
    ask(address, "GET", path, b"", Framing::ContentLength).await
}

/// Sends a POST request and reads the whole response.
pub async fn post(address: SocketAddr, path: &str, body: impl AsRef<[u8]>) -> Response {
    ask(address, "POST", path, body.as_ref(), Framing::ContentLength).await
}

/// Sends a request with this body and reads the whole response.
pub async fn ask(address: SocketAddr, method: &str, path: &str, body: &[u8], framing: Framing) -> Response {
    let mut stream = send(address, method, path, body, framing).await;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.expect("a response");
    parse(&String::from_utf8(response).expect("a response in UTF-8"))
}

/// Sends a request with these header lines and reads the whole response.
pub async fn ask_with(
    address: SocketAddr,
    (method, path): (&str, &str),
    headers: &[&str],
    body: impl AsRef<[u8]>,
) -> Response {
    let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
    let body = body.as_ref();
    let is_typed = headers.iter().any(|line| line.to_ascii_lowercase().starts_with("content-type:"));
    let json = if is_typed { "" } else { "content-type: application/json\r\n" };
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).chain([json.to_owned()]).collect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    // A daemon that refuses a request early may stop reading before all of it is sent.
    stream.write_all(head.as_bytes()).await.expect("the daemon reads");
    let _ = stream.write_all(body).await;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.expect("a response");
    parse(&String::from_utf8(response).expect("a response in UTF-8"))
}

/// Sends a request and returns the connection, from which the caller may read the response.
pub async fn send(address: SocketAddr, method: &str, path: &str, body: &[u8], framing: Framing) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    );
    let message = match framing {
        Framing::ContentLength => {
            [format!("{head}content-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
        }
        Framing::Chunked => {
            let mut message = format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes();
            for piece in body.chunks(100) {
                message.extend(format!("{:x}\r\n", piece.len()).bytes());
                message.extend(piece);
                message.extend(b"\r\n");
            }
            message.extend(b"0\r\n\r\n");
            message
        }
    };
    stream.write_all(&message).await.expect("the daemon reads");
    stream
}

pub fn parse(response: &str) -> Response {
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {response:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
    let header =
        |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    Response {
        status: status.expect("a status"),
        headers: lines.filter_map(header).collect(),
        body: body.to_owned(),
    }
}
