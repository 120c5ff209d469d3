//! TLS as Open vSwitch uses it: both sides show certificates of one CA; the names in them are not
//! compared with host names (ovs-vswitchd(8), "Public Key Infrastructure Options").

mod version1;

use crate::stream::BoxStream;
use crate::{Error, Str};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion,
};
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt;
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

impl TlsFiles {
    /// Those that a daemon's options name; none where they name no key or no certificate.
    pub fn from_options(options: &daemon::TlsOptions) -> Option<TlsFiles> {
        let (private_key, certificate) = (options.private_key.clone()?, options.certificate.clone()?);
        let bootstrap = options.bootstrap_ca_cert.clone();
        Some(TlsFiles {
            private_key,
            certificate,
            bootstrap: bootstrap.is_some(),
            ca_cert: bootstrap.or_else(|| options.ca_cert.clone()),
        })
    }
}

/// Files as they are when a connection is opened, to tell when that has to be opened anew.
#[derive(Debug)]
pub(crate) struct Watch(Vec<(PathBuf, Stamp)>);

/// What differs when a file was written: device, number, size and time of the last change; none: there is no file.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let m = std::fs::metadata(path).ok()?;
    Some((m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec()))
}

impl Watch {
    /// A file that is no longer what it was.
    pub(crate) fn changed(&self) -> Option<&Path> {
        self.0.iter().find(|(path, before)| stamp(path) != *before).map(|(path, _)| path.as_path())
    }
}

/// TLS from files, which are read anew for each connection, as they may be renewed.
#[derive(Clone, Debug)]
pub struct Tls {
    files: TlsFiles,
    limits: Limits,
    /// Further certificates to show, as bootstrapping peers need them (`--peer-ca-cert`).
    peer_ca: Option<PathBuf>,
}

/// The protocols and ciphers to use (`--ssl-protocols`, `--ssl-ciphers`, `--ssl-ciphersuites`), by default all; and the name
/// that servers are asked for (`--ssl-server-name`).
#[derive(Clone, Debug)]
pub struct Limits {
    versions: Vec<&'static SupportedProtocolVersion>,
    suites: Vec<SupportedCipherSuite>,
    server_name: Option<ServerName<'static>>,
}

impl Default for Limits {
    fn default() -> Limits {
        let (versions, suites) = (rustls::ALL_VERSIONS.to_vec(), ring::ALL_CIPHER_SUITES.to_vec());
        Limits { versions, suites, server_name: None }
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
    /// What a daemon's options say.
    ///
    /// # Errors
    /// As [`Limits::parse`], and where the server's name is none.
    pub fn from_options(options: &daemon::TlsOptions) -> Result<Limits, Error> {
        let text = Option::as_deref;
        let limits =
            Limits::parse(text(&options.ssl_protocols), text(&options.ssl_ciphers), text(&options.ssl_ciphersuites))?;
        let name = |text: &String| {
            let wrong = |_| Error::Syntax(format!("--ssl-server-name: \"{text}\" is no name of a host"));
            ServerName::try_from(text.clone()).map_err(wrong)
        };
        Ok(Limits { server_name: options.ssl_server_name.as_ref().map(name).transpose()?, ..limits })
    }

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

    /// A list of versions, a range (`TLSv1.2-TLSv1.3`), or one and all later ones (`TLSv1.2+`).
    fn versions(text: &str) -> Result<Vec<&'static SupportedProtocolVersion>, Error> {
        const ALL: [&str; 5] = ["SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];
        let place = |word: &str| {
            ALL.iter()
                .position(|v| *v == word)
                .ok_or_else(|| Error::Syntax(format!("--ssl-protocols: \"{word}\" is not one of TLSv1.2, TLSv1.3")))
        };
        let mut chosen = [false; ALL.len()];
        for word in list(text) {
            let (first, last) = match (word.strip_suffix('+'), word.split_once('-')) {
                (Some(first), _) => (place(first)?, ALL.len() - 1),
                (None, Some((a, b))) => (place(a)?, place(b)?),
                (None, None) => (place(word)?, place(word)?),
            };
            chosen.iter_mut().take(first.max(last) + 1).skip(first.min(last)).for_each(|c| *c = true);
        }
        let mut versions = Vec::new();
        for (name, _) in ALL.iter().zip(chosen).filter(|(_, chosen)| *chosen) {
            match *name {
                "TLSv1.3" => versions.push(&rustls::version::TLS13),
                "TLSv1.2" => versions.push(&rustls::version::TLS12),
                old => {
                    tracing::warn!(target: "stream_ssl", "--ssl-protocols: {old} is not supported and stays disabled")
                }
            }
        }
        if versions.is_empty() {
            return Err(Error::Syntax(format!("--ssl-protocols={text}: only TLSv1.2 and TLSv1.3 are supported")));
        }
        Ok(versions)
    }

    /// What an OpenSSL cipher string commands beside its suites. Levels up to 2 (112 bits of security) hold anyway: rustls has
    /// neither weaker suites, nor signatures with SHA-1, and takes no RSA key of less than 2,048 bits.
    fn command(text: &str) -> Result<(), Error> {
        let level = text.strip_prefix("SECLEVEL=").map(str::parse::<u8>);
        match level {
            // The order of suites is rustls' own, the strongest first.
            None if text == "STRENGTH" => Ok(()),
            Some(Ok(0..=2)) => Ok(()),
            Some(Ok(level)) => Err(Error::Syntax(format!(
                "--ssl-ciphers: @SECLEVEL={level} asks for longer keys than can be checked here; use @SECLEVEL=2, and certificates with such keys"
            ))),
            _ => Err(Error::Syntax(format!("--ssl-ciphers: \"@{text}\" is not @STRENGTH or @SECLEVEL=0 to 2"))),
        }
    }

    /// The suites of an OpenSSL cipher string.
    fn ciphers(text: &str) -> Result<Vec<CipherSuite>, Error> {
        let mut chosen: Vec<CipherSuite> = Vec::new();
        for word in list(text) {
            let word = match word.split_once('@') {
                Some((word, command)) => {
                    Limits::command(command)?;
                    word
                }
                None => word,
            };
            if word.is_empty() {
                continue;
            }
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
    /// What a daemon's options say; none where they name no key or no certificate. The files may come later, as with
    /// [`Tls::later`].
    ///
    /// # Errors
    /// [`Error::Syntax`] where protocols or ciphers are asked for that we do not have.
    pub fn from_options(options: &daemon::TlsOptions) -> Result<Option<Tls>, Error> {
        let limits = Limits::from_options(options)?;
        Ok(TlsFiles::from_options(options).map(|files| Tls::later(files).limited(limits)))
    }

    /// Without a look at the files: each connection reads them, so that they may come or be mended later. What is wrong with them
    /// is logged.
    pub fn later(files: TlsFiles) -> Tls {
        if let Err(e) = Tls::new(files.clone()) {
            tracing::warn!(target: "stream_ssl", "{e}; connections over TLS fail until that is mended");
        }
        Tls { files, limits: Limits::default(), peer_ca: None }
    }

    /// Checks the files.
    ///
    /// # Errors
    /// [`Error::File`] where one cannot be read or does not hold what it should.
    pub fn new(files: TlsFiles) -> Result<Tls, Error> {
        let tls = Tls { files, limits: Limits::default(), peer_ca: None };
        certificates(&tls.files.certificate)?;
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

    /// The files as they are now.
    pub(crate) fn watch(&self) -> Watch {
        let TlsFiles { private_key, certificate, ca_cert, bootstrap } = &self.files;
        // A CA that is yet to be learned is written by the connection itself.
        let ca = ca_cert.as_ref().filter(|p| *p != Path::new("none") && (!bootstrap || p.exists()));
        let files = [private_key, certificate].into_iter().chain(ca);
        Watch(files.map(|p| (p.clone(), stamp(p))).collect())
    }

    /// Our certificate, those between it and the CA, and those to bootstrap from.
    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        let mut chain = certificates(&self.files.certificate)?;
        if let Some(path) = &self.peer_ca {
            chain.extend(certificates(path)?);
        }
        Ok(chain)
    }

    /// Our certificate with its key.
    fn own(&self) -> Result<Arc<SingleCertAndKey>, Error> {
        let (chain, key) = (self.chain()?, private_key(&self.files.private_key)?);
        let own: CertifiedKey =
            version1::certified_key(chain, key, &provider()).map_err(|e| bad(&self.files.certificate, e))?;
        Ok(Arc::new(SingleCertAndKey::from(own)))
    }

    /// The CAs to trust; none: any peer.
    fn roots(&self) -> Result<Option<Authorities>, Error> {
        let Some(path) = self.files.ca_cert.as_deref().filter(|p| *p != Path::new("none")) else { return Ok(None) };
        let list = certificates(path)?;
        let mut store = RootCertStore::empty();
        for c in &list {
            store.add(c.clone()).map_err(|e| bad(path, e))?;
        }
        Ok(Some(Authorities { store: Arc::new(store), list }))
    }

    fn server(&self) -> Result<ServerConfig, Error> {
        let path = &self.files.certificate;
        let builder = ServerConfig::builder_with_provider(self.limits.provider())
            .with_protocol_versions(&self.limits.versions)
            .map_err(|e| bad(path, e))?;
        let builder = match self.roots()? {
            Some(Authorities { store, list }) => {
                let inner =
                    WebPkiClientVerifier::builder_with_provider(store, provider()).build().map_err(|e| bad(path, e))?;
                builder.with_client_cert_verifier(Arc::new(ClientVerifier { inner, authorities: list }))
            }
            None => builder.with_no_client_auth(),
        };
        Ok(builder.with_cert_resolver(self.own()?))
    }

    /// Accepts a connection. Gives the common name of the client's certificate too.
    ///
    /// # Errors
    /// The files cannot be used, or the client's certificate is not signed by our CA.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<(BoxStream, Str)> {
        let config = self.server().map_err(io::Error::other)?;
        let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
        let (_, connection) = stream.get_ref();
        if let Some(name) = connection.server_name() {
            tracing::debug!(target: "stream_ssl", "connection indicated server name {name}");
        }
        let name = peer_name(connection.peer_certificates());
        Ok((Box::new(stream), name))
    }

    fn client(&self, verifier: Arc<Verifier>) -> Result<ClientConfig, Error> {
        let path = &self.files.certificate;
        let builder = ClientConfig::builder_with_provider(self.limits.provider())
            .with_protocol_versions(&self.limits.versions)
            .map_err(|e| bad(path, e))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        Ok(builder.with_client_cert_resolver(self.own()?))
    }

    /// Connects over the streams that `dial` opens. Gives the common name of the server's certificate too.
    pub(crate) async fn connect<Fut: Future<Output = io::Result<TcpStream>>>(
        &self,
        host: &str,
        dial: impl Fn() -> Fut,
    ) -> io::Result<(BoxStream, Str)> {
        let name = match &self.limits.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_string()).map_err(io::Error::other)?,
        };
        if self.files.bootstrap
            && let Some(path) = self.files.ca_cert.as_deref().filter(|p| !p.exists())
        {
            let verifier = Arc::new(Verifier { inner: None, authorities: Vec::new(), seen: Mutex::default() });
            let config = self.client(verifier.clone()).map_err(io::Error::other)?;
            // Servers may refuse the first connection; what counts is the CA that they showed.
            let _ = TlsConnector::from(Arc::new(config)).connect(name.clone(), dial().await?).await;
            let seen = verifier.seen.lock().unwrap_or_else(PoisonError::into_inner).take();
            let ca = seen.ok_or_else(|| io::Error::other("the server presented no CA to bootstrap from"))?;
            std::fs::write(path, pem(&ca))?;
            tracing::info!(target: "stream_ssl", "successfully bootstrapped CA cert to {}", path.display());
        }
        let (inner, authorities) = match self.roots().map_err(io::Error::other)? {
            Some(Authorities { store, list }) => {
                let inner = WebPkiServerVerifier::builder_with_provider(store, provider()).build();
                (Some(inner.map_err(io::Error::other)?), list)
            }
            None => (None, Vec::new()),
        };
        let verifier = Arc::new(Verifier { inner, authorities, seen: Mutex::default() });
        let config = self.client(verifier).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, dial().await?).await?;
        let name = peer_name(stream.get_ref().1.peer_certificates());
        Ok((Box::new(stream), name))
    }
}

/// The common name of the first of a peer's certificates.
fn peer_name(certificates: Option<&[CertificateDer<'_>]>) -> Str {
    certificates.and_then(<[_]>::first).and_then(|c| version1::common_name(c)).unwrap_or_default().into()
}

/// The CAs that we trust.
struct Authorities {
    store: Arc<RootCertStore>,
    list: Vec<CertificateDer<'static>>,
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
    authorities: Vec<CertificateDer<'static>>,
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
        if version1::is_version_1(end_entity) {
            version1::verify(end_entity, &self.authorities, now)?;
            return Ok(ServerCertVerified::assertion());
        }
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
        tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

fn tls12_signature(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let algorithms = provider().signature_verification_algorithms;
    if version1::is_version_1(cert) {
        return version1::verify_tls12_signature(message, cert, dss, &algorithms);
    }
    rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
}

fn tls13_signature(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let algorithms = provider().signature_verification_algorithms;
    if version1::is_version_1(cert) {
        return version1::verify_tls13_signature(message, cert, dss, &algorithms);
    }
    rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
}

/// Checks a client's chain, whatever the version of its certificate.
#[derive(Debug)]
struct ClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    authorities: Vec<CertificateDer<'static>>,
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if version1::is_version_1(end_entity) {
            version1::verify(end_entity, &self.authorities, now)?;
            return Ok(ClientCertVerified::assertion());
        }
        self.inner.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        tls13_signature(message, cert, dss)
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
        // As ovn-controller.at gives it, and as OpenSSL reads it.
        for text in ["DEFAULT@SECLEVEL=2", "HIGH:@STRENGTH", "HIGH:@SECLEVEL=1:!MD5"] {
            assert_eq!(names(&Limits::parse(None, Some(text), None).unwrap()), names(&all), "{text}");
        }
        for text in ["DEFAULT@SECLEVEL=3", "DEFAULT@SECLEVEL=", "HIGH:@FIRST"] {
            assert!(Limits::parse(None, Some(text), None).is_err(), "{text}");
        }
    }

    #[test]
    fn files_that_are_replaced_or_taken_away_have_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["key", "cert", "ca"] {
            std::fs::write(path(name), "1").unwrap();
        }
        let tls = |ca: &str, bootstrap| {
            let ca_cert = Some(if ca == "none" { ca.into() } else { path(ca) });
            let files = TlsFiles { private_key: path("key"), certificate: path("cert"), ca_cert, bootstrap };
            Tls { files, limits: Limits::default(), peer_ca: None }
        };
        let (w, learns) = (tls("ca", false).watch(), tls("later", true).watch());
        assert_eq!((w.changed(), tls("none", false).watch().changed()), (None, None));
        std::fs::write(path("later"), "1").unwrap();
        assert_eq!(learns.changed(), None, "what the connection itself writes is no change");
        std::fs::write(path("new"), "2").unwrap();
        std::fs::rename(path("new"), path("ca")).unwrap();
        assert_eq!(w.changed(), Some(&*path("ca")));
        std::fs::remove_file(path("cert")).unwrap();
        assert_eq!(learns.changed(), Some(&*path("cert")));
    }

    #[test]
    fn a_daemons_options_are_kept() {
        let mut options = daemon::TlsOptions::default();
        assert!(Tls::from_options(&options).unwrap().is_none());
        options.private_key = Some("key".into());
        options.certificate = Some("certificate".into());
        options.ca_cert = Some("ca".into());
        options.ssl_protocols = Some("TLSv1.2".into());
        options.ssl_ciphers = Some("ECDHE-RSA-AES256-GCM-SHA384".into());
        let tls = Tls::from_options(&options).unwrap().unwrap();
        let ciphers = tls.limits.suites.iter().filter(|s| s.tls13().is_none()).count();
        assert_eq!((tls.limits.versions.len(), ciphers), (1, 1));
        assert_eq!((tls.files.ca_cert, tls.files.bootstrap), (Some("ca".into()), false));
        options.bootstrap_ca_cert = Some("first".into());
        let tls = Tls::from_options(&options).unwrap().unwrap();
        assert_eq!((tls.files.ca_cert, tls.files.bootstrap), (Some("first".into()), true));
        options.ssl_server_name = Some("ovn.example".into());
        let tls = Tls::from_options(&options).unwrap().unwrap();
        assert_eq!(tls.limits.server_name, ServerName::try_from("ovn.example").ok());
        options.ssl_server_name = Some("no name".into());
        assert!(Tls::from_options(&options).is_err());
        options.ssl_server_name = None;
        options.ssl_protocols = Some("TLSv9".into());
        assert!(Tls::from_options(&options).is_err());
    }

    #[test]
    fn protocols_are_a_list_or_a_range() {
        let versions = |text: &str| {
            let limits = Limits::parse(Some(text), None, None).map_err(|e| e.to_string())?;
            Ok::<_, String>(limits.versions.iter().map(|v| format!("{:?}", v.version)).collect::<Vec<_>>().join(" "))
        };
        for both in
            ["TLSv1.2-TLSv1.3", "TLSv1.3-TLSv1.2", "TLSv1.2+", "TLSv1.2,TLSv1.3", "TLSv1.3 TLSv1.2", "TLSv1-TLSv1.3"]
        {
            assert_eq!(versions(both), Ok("TLSv1_2 TLSv1_3".into()), "{both}");
        }
        assert_eq!(versions("TLSv1.1-TLSv1.2"), Ok("TLSv1_2".into()));
        assert_eq!(versions("TLSv1.3+"), Ok("TLSv1_3".into()));
        for wrong in ["TLSv1.2-", "-TLSv1.3", "TLSv1.4", "TLSv1-TLSv1.1", "+", ""] {
            assert!(versions(wrong).is_err(), "{wrong}");
        }
        assert!(versions("TLSv1.2-TLSv9").is_err_and(|e| e.contains("TLSv9")));
    }

    /// A CA, another one, and certificates of version 1 and 3, as openssl makes them.
    struct Pki(tempfile::TempDir);

    impl Pki {
        fn new() -> Pki {
            let pki = Pki(tempfile::tempdir().unwrap());
            for ca in ["ca", "otherca"] {
                pki.openssl(&format!(
                    "req -x509 -newkey rsa:2048 -nodes -keyout {ca}.key -out {ca}.pem -subj /CN={ca}"
                ));
            }
            std::fs::write(pki.0.path().join("v3.ext"), "basicConstraints=CA:FALSE\n").unwrap();
            for (name, ca, kind, more) in [
                ("server", "ca", "rsa:2048", ""),
                ("client", "ca", "rsa:2048", ""),
                ("modern", "ca", "rsa:2048", " -extfile v3.ext"),
                ("foreign", "otherca", "rsa:2048", ""),
                ("impostor", "modern", "rsa:2048", ""),
                ("expired", "ca", "rsa:2048", " -days -1"),
            ] {
                pki.openssl(&format!("req -newkey {kind} -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"));
                pki.openssl(&format!(
                    "x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -out {name}.pem{more}"
                ));
            }
            pki
        }

        fn openssl(&self, args: &str) {
            let out = std::process::Command::new("openssl").current_dir(self.0.path()).args(args.split(' ')).output();
            let out = out.unwrap();
            assert!(out.status.success(), "{args}: {out:?}");
        }

        fn files(&self, name: &str) -> TlsFiles {
            let path = |f: String| self.0.path().join(f);
            TlsFiles {
                private_key: path(format!("{name}.key")),
                certificate: path(format!("{name}.pem")),
                ca_cert: Some(path("ca.pem".into())),
                bootstrap: false,
            }
        }

        /// What the server learns of the client, after a byte each way.
        async fn meet(&self, server: &str, client: &str, versions: &str) -> io::Result<Str> {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let limits = || Limits::parse(Some(versions), None, None).unwrap();
            let (server, client) = (
                Tls::new(self.files(server)).unwrap().limited(limits()),
                Tls::new(self.files(client)).unwrap().limited(limits()),
            );
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            let address = listener.local_addr()?;
            let accepted = tokio::spawn(async move {
                let (mut stream, name) = server.accept(listener.accept().await?.0).await?;
                stream.write_all(b"x").await?;
                stream.flush().await?;
                stream.read_u8().await?;
                Ok::<_, io::Error>(name)
            });
            let (mut stream, _) = client.connect("127.0.0.1", || TcpStream::connect(address)).await?;
            stream.read_u8().await?;
            stream.write_all(b"y").await?;
            stream.flush().await?;
            accepted.await.unwrap()
        }
    }

    #[tokio::test]
    async fn certificates_of_version_1_count_where_a_trusted_ca_signed_them() {
        let pki = Pki::new();
        let version_1 = |name: &str| version1::is_version_1(&certificates(&pki.files(name).certificate).unwrap()[0]);
        assert!(version_1("client") && !version_1("modern") && !version_1("ca"), "as openssl x509 makes them");
        for versions in ["TLSv1.2", "TLSv1.3"] {
            assert_eq!(&*pki.meet("server", "client", versions).await.unwrap(), "client");
            assert_eq!(&*pki.meet("modern", "client", versions).await.unwrap(), "client");
            assert_eq!(&*pki.meet("server", "modern", versions).await.unwrap(), "modern");
            for wrong in ["foreign", "impostor", "expired"] {
                assert!(pki.meet("server", wrong, versions).await.is_err(), "{wrong} as a client, {versions}");
                assert!(pki.meet(wrong, "client", versions).await.is_err(), "{wrong} as a server, {versions}");
            }
        }
        // A key that is not the certificate's is found before anybody connects.
        let files = TlsFiles { private_key: pki.0.path().join("server.key"), ..pki.files("client") };
        assert!(Tls::new(files).unwrap().own().is_err());
    }

    #[test]
    fn der_that_ends_early_has_no_name() {
        let der = [0x30, 0x82, 0x01, 0x00, 0x30, 0x03, 0x02, 0x01];
        for n in 0..=der.len() {
            assert_eq!(version1::common_name(&der[..n]), None);
        }
    }
}
