//! Passwords, users with the fewest permissions that suffice, and certificates.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use thresher_shared::{FieldChange, Shared, SharedSettings};

use super::{bounded, connected, get, key, limits, settings, store, value};
use crate::support::redis::{Server, available};
use crate::support::wait::eventually;

/// The permissions that docs/deployment.md names.
pub const LEAST: &str = "~thresher:* resetchannels -@all +getrange +set +expire +hset +hsetnx +hget +hdel +hscan +xadd +xread +xrange +xrevrange +xlen \
     +multi +exec +ping +cluster|slots";

#[tokio::test(flavor = "multi_thread")]
async fn a_password_in_the_url_or_in_a_file_is_accepted() {
    if !available() {
        return;
    }
    let server = Server::start_with(&["--requirepass", "p@ss/word"], &["-a", "p@ss/word"]);
    let address = format!("127.0.0.1:{}", server.port);
    let by_url = connected(&settings(&format!("redis://:p%40ss%2Fword@{address}"))).await;
    store(&by_url, [1]).await;
    let file = server.file("password", "p@ss/word\n");
    let by_file =
        connected(&SharedSettings { password_file: file, ..settings(&format!("redis://{address}")) }).await;
    assert_eq!(get(&by_file, 1).await, Some(value(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_documented_permissions_can_do_everything() {
    if !available() {
        return;
    }
    let server = Server::start(&[]);
    let mut rights = vec!["ACL", "SETUSER", "thresher", "on", ">secret"];
    rights.extend(LEAST.split_whitespace());
    assert_eq!(server.cli(&rights), "OK");
    server.cli(&["ACL", "SETUSER", "default", "off"]);
    let user = SharedSettings {
        password_file: server.file("password", "secret"),
        ..settings(&server.url().replace("redis://", "redis://thresher@"))
    };
    let shared = connected(&user).await;
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
    for number in [1, 2] {
        shared.renew(&key(number), &value(number));
    }
    shared.flush().await;
    assert_eq!(get(&shared, 2).await, Some(value(2)), "renewing a missing block writes it");
    let journal = shared.journal("chunks", 100).expect("a name");
    let mut follower = journal.follow(None);
    journal.change(&[FieldChange::Put(b"a", b"1")], &[(b"a", b"1")]).await.expect("allowed");
    let changes = [FieldChange::Delete(b"b"), FieldChange::Offer(b"d", b"1")];
    journal.change(&changes, &[(b"d", b"1")]).await.expect("allowed");
    assert_eq!(journal.scan_fields(None).await.expect("allowed").fields.len(), 2);
    assert!(journal.last_id().await.expect("allowed").is_some());
    assert_eq!(journal.field_or_put(b"c", b"1").await.expect("allowed"), "1");
    assert!(bounded(follower.next()).await.is_some());
    let elsewhere = SharedSettings { prefix: "other:".to_owned(), ..user };
    let shared = Shared::connect_within(&elsewhere, limits()).expect("settings are right");
    assert_eq!(get(&shared, 1).await, None, "the user may not read other keys");
}

#[tokio::test]
async fn a_tier_with_a_wrong_password_is_down_until_the_file_holds_the_right_one() {
    if !available() {
        return;
    }
    let (_subscriber, log) = super::failing::own_log("trace,redis=off");
    let server = Server::start_with(&["--requirepass", "right"], &["-a", "right"]);
    let file = server.file("password", "hunter2");
    let wrong = SharedSettings { password_file: file.clone(), ..settings(&server.url()) };
    let shared = Shared::connect_within(&wrong, limits())
        .expect("a wrong password is noticed by the first login only");
    eventually("the failed login is in the log", async || log().contains("authentication failed")).await;
    assert_eq!(get(&shared, 1).await, None);
    bounded(async { shared.put(&key(1), value(1)) }).await;
    assert!(!shared.is_well());
    // The password in the file is replaced by the right one.
    server.file("password", "right");
    eventually("the password is read from the file again", async || shared.is_well()).await;
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
    assert!(!log().contains("hunter2"), "passwords are never logged");
}

struct Authority {
    ca: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        // Without a name of its own, the authority has the name of its certificates, and they look
        // self-signed.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer =
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        Self { ca: issuer.pem(), issuer }
    }

    /// A certificate for `name` and its private key, both PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        (params.signed_by(&key, &self.issuer).expect("a certificate").pem(), key.serialize_pem())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_the_server_and_of_the_client_are_checked() {
    if !available() {
        return;
    }
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (certificate, private) = ours.issue("127.0.0.1");
    let (client_certificate, client_private) = ours.issue("sidecar");
    let files = tempfile::tempdir().expect("a folder");
    let file = |name: &str, content: &str| -> PathBuf {
        let path = files.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    };
    let [ca, other_ca] = [file("ca", &ours.ca), file("other", &theirs.ca)];
    let path = |name: &str, content: &str| file(name, content).display().to_string();
    let (cert, private) = (path("cert", &certificate), path("key", &private));
    let ca_text = ca.display().to_string();
    let tls = ["--port", "0", "--tls-port", "$PORT", "--tls-cert-file", &cert, "--tls-key-file", &private];
    let cli = ["--tls", "--cacert", &ca_text, "--cert", &cert, "--key", &private];
    let arguments = |clients: &'static str| {
        [tls.as_slice(), &["--tls-ca-cert-file", &ca_text, "--tls-auth-clients", clients]].concat()
    };
    let server = Server::start_with(&arguments("no"), &cli);
    let url = format!("valkeys://127.0.0.1:{}", server.port);
    let shared = connected(&SharedSettings { ca_file: ca.clone(), ..settings(&url) }).await;
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
    let client = SharedSettings {
        ca_file: ca.clone(),
        client_cert_file: file("client", &client_certificate),
        client_key_file: file("client key", &client_private),
        ..settings("")
    };
    let strict = Server::start_with(&arguments("yes"), &cli);
    let strict_url = format!("rediss://127.0.0.1:{}", strict.port);
    let urls = |url: &str| [url.to_owned()].into_iter().collect();
    connected(&SharedSettings { urls: urls(&strict_url), ..client }).await;
    let refused = [
        ("another authority", SharedSettings { ca_file: other_ca, ..settings(&url) }),
        ("the public authorities", settings(&url)),
        (
            "another name",
            SharedSettings { ca_file: ca.clone(), ..settings(&url.replace("127.0.0.1", "localhost")) },
        ),
        ("no certificate of the client", SharedSettings { ca_file: ca, ..settings(&strict_url) }),
        ("no TLS", settings(&server.url())),
    ];
    let tiers: Vec<(&str, Shared)> = refused
        .into_iter()
        .map(|(case, s)| (case, Shared::connect_within(&s, limits()).expect("settings are right")))
        .collect();
    // Time in which a tier that accepts the certificate by mistake would connect. A slow machine cannot make
    // this fail.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    for (case, shared) in &tiers {
        assert!(!shared.is_well(), "{case}");
        assert_eq!(get(shared, 1).await, None, "{case}");
    }
}
