//! TLS as Open vSwitch uses it: both sides show certificates of one CA; the names in them are not
//! compared with host names (ovs-vswitchd(8), "Public Key Infrastructure Options").

use crate::stream::BoxStream;
use crate::{Error, Str};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
    SupportedCipherSuite, SupportedProtocolVersion,
};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The files that TLS needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The private key.
    pub private_key: PathBuf,
    /// Its certificate, and those between it and the CA.
    pub certificate: PathBuf,
    /// The CA of the peers; "none" to accept any.
    pub ca_cert: Option<PathBuf>,
    /// Where `ca_cert` is absent on disk, take the CA that the first server presents and keep it there.
    pub bootstrap: bool,
}

/// TLS from files, which are read anew for each connection, as they may be renewed.
#[derive(Clone, Debug)]
pub struct Tls {
    files: TlsFiles,
    limits: Limits,
    /// Further certificates to show, as bootstrapping peers need them (`--peer-ca-cert`).
    peer_ca: Option<PathBuf>,
}

/// The protocols and ciphers to use (`--ssl-protocols`, `--ssl-ciphers`, `--ssl-ciphersuites`). By default all.
#[derive(Clone, Debug)]
pub struct Limits {
    versions: Vec<&'static SupportedProtocolVersion>,
    suites: Vec<SupportedCipherSuite>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { versions: rustls::ALL_VERSIONS.to_vec(), suites: ring::ALL_CIPHER_SUITES.to_vec() }
    }
}

/// The TLS 1.2 suites by the names that OpenSSL gives them.
const OPENSSL: [(&str, CipherSuite); 6] = [
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// The TLS 1.3 suites.
const SUITES: [(&str, CipherSuite); 3] = [
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
];

/// Words of OpenSSL's cipher strings that stand for all suites that rustls has.
const ALL: [&str; 6] = ["HIGH", "ALL", "DEFAULT", "ECDHE", "EECDH", "AESGCM"];
/// Words for suites that rustls never uses.
const NEVER: [&str; 18] = [
    "aNULL", "eNULL", "NULL", "MD5", "RC4", "3DES", "DES", "DSS", "SSLv3", "EXPORT", "EXP", "LOW", "MEDIUM", "PSK",
    "SRP", "CAMELLIA", "kRSA", "SHA1",
];

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ' ', ':']).filter(|w| !w.is_empty())
}

impl Limits {
    /// Reads the options' values; none stands for the default.
    ///
    /// # Errors
    /// Where a word is unknown, and where nothing is left that both OpenSSL and rustls know.
    pub fn parse(protocols: Option<&str>, ciphers: Option<&str>, suites: Option<&str>) -> Result<Limits, Error> {
        let mut limits = Limits::default();
        if let Some(text) = protocols {
            limits.versions = Limits::versions(text)?;
        }
        if let Some(text) = ciphers {
            let chosen = Limits::ciphers(text)?;
            limits.suites.retain(|s| s.tls13().is_some() || chosen.contains(&s.suite()));
        }
        if let Some(text) = suites {
            let mut chosen = Vec::new();
            for word in list(text) {
                let found = SUITES.iter().find(|(n, _)| *n == word).ok_or_else(|| {
                    let names: Vec<&str> = SUITES.iter().map(|(n, _)| *n).collect();
                    Error::Syntax(format!("--ssl-ciphersuites: \"{word}\" is not one of {}", names.join(", ")))
                })?;
                chosen.push(found.1);
            }
            limits.suites.retain(|s| s.tls13().is_none() || chosen.contains(&s.suite()));
        }
        let usable = |s: &SupportedCipherSuite| limits.versions.iter().any(|v| *v == s.version());
        if !limits.suites.iter().any(usable) {
            return Err(Error::syntax("--ssl-protocols and --ssl-ciphers leave no cipher to use"));
        }
        Ok(limits)
    }

    fn versions(text: &str) -> Result<Vec<&'static SupportedProtocolVersion>, Error> {
        let mut versions = Vec::new();
        for word in list(text) {
            match word.trim_end_matches('+') {
                "TLSv1.3" => versions.push(&rustls::version::TLS13),
                "TLSv1.2" => versions.push(&rustls::version::TLS12),
                old @ ("TLSv1" | "TLSv1.1" | "SSLv3") => {
                    tracing::warn!(target: "stream_ssl", "--ssl-protocols: {old} is not supported and stays disabled");
                }
                _ => return Err(Error::Syntax(format!("--ssl-protocols: \"{word}\" is not one of TLSv1.2, TLSv1.3"))),
            }
            if word == "TLSv1.2+" {
                versions.push(&rustls::version::TLS13);
            }
        }
        if versions.is_empty() {
            return Err(Error::Syntax(format!("--ssl-protocols={text}: only TLSv1.2 and TLSv1.3 are supported")));
        }
        Ok(versions)
    }

    /// The suites of an OpenSSL cipher string.
    fn ciphers(text: &str) -> Result<Vec<CipherSuite>, Error> {
        let mut chosen: Vec<CipherSuite> = Vec::new();
        for word in list(text).filter(|w| !w.starts_with('@')) {
            let (remove, name) = match word.strip_prefix(['!', '-']) {
                Some(name) => (true, name),
                None => (false, word.trim_start_matches('+')),
            };
            let found: Vec<CipherSuite> = match OPENSSL.iter().find(|(n, _)| *n == name) {
                Some((_, suite)) => vec![*suite],
                None if ALL.contains(&name) => OPENSSL.iter().map(|(_, s)| *s).collect(),
                None if NEVER.contains(&name) => Vec::new(),
                None => {
                    let names: Vec<&str> = OPENSSL.iter().map(|(n, _)| *n).collect();
                    let text = format!("--ssl-ciphers: \"{word}\" is not supported; use {} or HIGH", names.join(", "));
                    return Err(Error::Syntax(text));
                }
            };
            if remove {
                chosen.retain(|s| !found.contains(s));
            } else {
                chosen.extend(found);
            }
        }
        Ok(chosen)
    }

    fn provider(&self) -> Arc<CryptoProvider> {
        Arc::new(CryptoProvider { cipher_suites: self.suites.clone(), ..ring::default_provider() })
    }
}

fn bad(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::File { path: path.display().to_string(), reason: why.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let file = std::fs::File::open(path).map_err(|e| bad(path, e))?;
    let list: Vec<_> =
        rustls_pemfile::certs(&mut BufReader::new(file)).collect::<Result<_, _>>().map_err(|e| bad(path, e))?;
    if list.is_empty() { Err(bad(path, "no certificate in PEM form")) } else { Ok(list) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let file = std::fs::File::open(path).map_err(|e| bad(path, e))?;
    rustls_pemfile::private_key(&mut BufReader::new(file))
        .map_err(|e| bad(path, e))?
        .ok_or_else(|| bad(path, "no private key in PEM form"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl Tls {
    /// Checks the files.
    ///
    /// # Errors
    /// [`Error::File`] where one cannot be read or does not hold what it should.
    pub fn new(files: TlsFiles) -> Result<Tls, Error> {
        let tls = Tls { files, limits: Limits::default(), peer_ca: None };
        let own = certificates(&tls.files.certificate)?;
        if own.first().is_some_and(|c| is_version_1(c)) {
            return Err(bad(&tls.files.certificate, VERSION_1));
        }
        private_key(&tls.files.private_key)?;
        if !tls.files.bootstrap {
            tls.roots()?;
        }
        Ok(tls)
    }

    /// The common name of our certificate: who we are where roles count. Empty where it has none.
    ///
    /// # Errors
    /// [`Error::File`] where the certificate cannot be read.
    pub fn own_name(&self) -> Result<Str, Error> {
        Ok(peer_name(Some(&certificates(&self.files.certificate)?)))
    }

    /// The same with other protocols and ciphers.
    #[must_use]
    pub fn limited(self, limits: Limits) -> Tls {
        Tls { limits, ..self }
    }

    /// The same, showing further certificates to peers, so that they can bootstrap.
    #[must_use]
    pub fn peer_ca(self, file: Option<PathBuf>) -> Tls {
        Tls { peer_ca: file, ..self }
    }

    /// Our certificate, those between it and the CA, and those to bootstrap from.
    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        let mut chain = certificates(&self.files.certificate)?;
        if let Some(path) = &self.peer_ca {
            chain.extend(certificates(path)?);
        }
        Ok(chain)
    }

    /// The CAs to trust; none: any peer.
    fn roots(&self) -> Result<Option<Arc<RootCertStore>>, Error> {
        let Some(path) = self.files.ca_cert.as_deref().filter(|p| *p != Path::new("none")) else { return Ok(None) };
        let mut store = RootCertStore::empty();
        for c in certificates(path)? {
            store.add(c).map_err(|e| bad(path, e))?;
        }
        Ok(Some(Arc::new(store)))
    }

    fn server(&self) -> Result<ServerConfig, Error> {
        let path = &self.files.certificate;
        let builder = ServerConfig::builder_with_provider(self.limits.provider())
            .with_protocol_versions(&self.limits.versions)
            .map_err(|e| bad(path, e))?;
        let builder = match self.roots()? {
            Some(roots) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(|e| bad(path, e))?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        builder.with_single_cert(self.chain()?, private_key(&self.files.private_key)?).map_err(|e| bad(path, e))
    }

    /// Accepts a connection. Gives the common name of the client's certificate too.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<(BoxStream, Str)> {
        let config = self.server().map_err(io::Error::other)?;
        let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await.map_err(explained)?;
        let name = peer_name(stream.get_ref().1.peer_certificates());
        Ok((Box::new(stream), name))
    }

    fn client(&self, verifier: Arc<Verifier>) -> Result<ClientConfig, Error> {
        let path = &self.files.certificate;
        ClientConfig::builder_with_provider(self.limits.provider())
            .with_protocol_versions(&self.limits.versions)
            .map_err(|e| bad(path, e))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(self.chain()?, private_key(&self.files.private_key)?)
            .map_err(|e| bad(path, e))
    }

    /// Connects over the streams that `dial` opens. Gives the common name of the server's certificate too.
    pub(crate) async fn connect<Fut: Future<Output = io::Result<TcpStream>>>(
        &self,
        host: &str,
        dial: impl Fn() -> Fut,
    ) -> io::Result<(BoxStream, Str)> {
        let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
        if self.files.bootstrap
            && let Some(path) = self.files.ca_cert.as_deref().filter(|p| !p.exists())
        {
            let verifier = Arc::new(Verifier { inner: None, seen: Mutex::default() });
            let config = self.client(verifier.clone()).map_err(io::Error::other)?;
            // Servers may refuse the first connection; what counts is the CA that they showed.
            let _ = TlsConnector::from(Arc::new(config)).connect(name.clone(), dial().await?).await;
            let seen = verifier.seen.lock().unwrap_or_else(PoisonError::into_inner).take();
            let ca = seen.ok_or_else(|| io::Error::other("the server presented no CA to bootstrap from"))?;
            std::fs::write(path, pem(&ca))?;
            tracing::info!(target: "stream_ssl", "successfully bootstrapped CA cert to {}", path.display());
        }
        let inner = match self.roots().map_err(io::Error::other)? {
            Some(roots) => {
                Some(WebPkiServerVerifier::builder_with_provider(roots, provider()).build().map_err(io::Error::other)?)
            }
            None => None,
        };
        let verifier = Arc::new(Verifier { inner, seen: Mutex::default() });
        let config = self.client(verifier).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, dial().await?).await.map_err(explained)?;
        let name = peer_name(stream.get_ref().1.peer_certificates());
        Ok((Box::new(stream), name))
    }
}

/// The common name of the first of a peer's certificates.
fn peer_name(certificates: Option<&[CertificateDer<'_>]>) -> Str {
    certificates.and_then(<[_]>::first).and_then(|c| common_name(c)).unwrap_or_default()
}

/// One element of DER (X.690 section 8.1): its tag, its content, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        n if n & 0x80 == 0 => (usize::from(*n), rest),
        n => {
            let (digits, rest) = rest.split_at_checked(usize::from(n & 0x7f)).filter(|(d, _)| d.len() <= 4)?;
            (digits.iter().fold(0, |n, d| n << 8 | usize::from(*d)), rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// What is wrong with a certificate of version 1, and what mends it. These have no extensions, so nothing in one says that
/// it is no CA's (RFC 5280 section 4.2.1.9): whoever has one could sign others.
const VERSION_1: &str = "this is an X.509 certificate of version 1, which is not accepted; make one of version 3: give \
    `openssl x509 -req` the option `-extfile FILE` with a line such as `basicConstraints=CA:FALSE`, or use ovs-pki";

/// Whether a certificate is of version 1: only then it has no field that tells (RFC 5280 section 4.1.2.1).
fn is_version_1(certificate: &[u8]) -> bool {
    let fields = element(certificate).and_then(|(_, c, _)| element(c));
    fields.is_some_and(|(_, fields, _)| fields.first().is_some_and(|tag| *tag != 0xa0))
}

/// An error of a handshake, in words that say what mends it where that is known.
fn explained(e: io::Error) -> io::Error {
    match e.to_string() {
        text if text.contains("UnsupportedCertVersion") => {
            io::Error::other(format!("the peer's certificate: {VERSION_1}"))
        }
        _ => e,
    }
}

/// The last common name in the subject of a certificate (RFC 5280 section 4.1.2.6).
fn common_name(certificate: &[u8]) -> Option<Str> {
    const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
    let (_, certificate, _) = element(certificate)?;
    let (_, to_be_signed, _) = element(certificate)?;
    let mut rest = to_be_signed;
    if rest.first() == Some(&0xa0) {
        rest = element(rest)?.2;
    }
    // Serial number, signature algorithm, issuer, validity.
    for _ in 0..4 {
        rest = element(rest)?.2;
    }
    let (_, mut subject, _) = element(rest)?;
    let mut name = None;
    while let Some((_, mut set, rest)) = element(subject) {
        subject = rest;
        while let Some((_, attribute, rest)) = element(set) {
            set = rest;
            let (_, kind, value) = element(attribute)?;
            if kind == COMMON_NAME {
                name = std::str::from_utf8(element(value)?.1).ok().map(Str::from);
            }
        }
    }
    name
}

fn pem(der: &CertificateDer<'_>) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in der.chunks(3) {
        let bits = group.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - group.len()));
        for i in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= group.len() { char::from(digit) } else { '=' });
        }
    }
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|l| std::str::from_utf8(l).ok()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Checks a server's chain but not its name; without CAs, notes the chain's last certificate.
#[derive(Debug)]
struct Verifier {
    inner: Option<Arc<WebPkiServerVerifier>>,
    seen: Mutex<Option<CertificateDer<'static>>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else {
            let last = intermediates.last().map(|c| c.clone().into_owned());
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = last;
            return Ok(ServerCertVerified::assertion());
        };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is compared last, when the chain has been found good.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_that_can_be_kept() {
        let all = Limits::default();
        let names = |l: &Limits| l.suites.len();
        assert_eq!(names(&Limits::parse(None, Some("HIGH:!aNULL:!MD5"), None).unwrap()), names(&all));
        let l = Limits::parse(Some("TLSv1.2"), Some("ECDHE-RSA-AES256-GCM-SHA384"), None).unwrap();
        assert_eq!((l.versions.len(), l.suites.iter().filter(|s| s.tls13().is_none()).count()), (1, 1));
        assert_eq!(Limits::parse(Some("TLSv1,TLSv1.1,TLSv1.2"), None, None).unwrap().versions.len(), 1);
        assert_eq!(Limits::parse(None, None, Some("TLS_AES_128_GCM_SHA256")).unwrap().suites.len(), 7);
        for (p, c) in [(Some("TLSv1"), None), (Some("TLSv9"), None), (None, Some("RC4-MD5"))] {
            assert!(Limits::parse(p, c, None).is_err(), "{p:?} {c:?}");
        }
        assert!(Limits::parse(Some("TLSv1.2"), Some("HIGH:!HIGH"), None).is_err());
    }

    #[test]
    fn certificates_of_version_1_are_refused_with_what_mends_it() {
        let dir = tempfile::tempdir().unwrap();
        let openssl = |args: &str| {
            let out =
                std::process::Command::new("openssl").current_dir(dir.path()).args(args.split(' ')).output().unwrap();
            assert!(out.status.success(), "{out:?}");
        };
        openssl("req -newkey rsa:2048 -nodes -keyout key.pem -out req.pem -subj /CN=old");
        openssl("x509 -req -in req.pem -signkey key.pem -out v1.pem");
        openssl("req -x509 -key key.pem -out v3.pem -subj /CN=new");
        let files = |certificate: &str| TlsFiles {
            private_key: dir.path().join("key.pem"),
            certificate: dir.path().join(certificate),
            ca_cert: None,
            bootstrap: false,
        };
        let old = certificates(&files("v1.pem").certificate).unwrap();
        if is_version_1(&old[0]) {
            let error = Tls::new(files("v1.pem")).unwrap_err().to_string();
            assert!(error.contains("v1.pem") && error.contains("version 1") && error.contains("-extfile"), "{error}");
        }
        assert!(!is_version_1(&certificates(&files("v3.pem").certificate).unwrap()[0]));
        Tls::new(files("v3.pem")).unwrap();
        // Version 1 has no field that tells: the serial number is first.
        assert!(is_version_1(&[0x30, 0x05, 0x30, 0x03, 0x02, 0x01, 0x01]));
        assert!(!is_version_1(&[0x30, 0x07, 0x30, 0x05, 0xa0, 0x03, 0x02, 0x01, 0x02]));
    }

    #[test]
    fn der_that_ends_early_has_no_name() {
        let der = [0x30, 0x82, 0x01, 0x00, 0x30, 0x03, 0x02, 0x01];
        for n in 0..der.len() {
            assert_eq!(common_name(&der[..n]), None);
        }
        assert_eq!(element(&[0x30, 0x85, 1, 2, 3, 4, 5, 6]), None);
    }
}
