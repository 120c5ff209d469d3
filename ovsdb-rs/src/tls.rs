//! TLS as Open vSwitch uses it: both sides show certificates of one CA; the names in them are not
//! compared with host names (ovs-vswitchd(8), "Public Key Infrastructure Options").

use crate::Error;
use crate::stream::BoxStream;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
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
        let tls = Tls { files };
        certificates(&tls.files.certificate)?;
        private_key(&tls.files.private_key)?;
        if !tls.files.bootstrap {
            tls.roots()?;
        }
        Ok(tls)
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
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| bad(path, e))?;
        let builder = match self.roots()? {
            Some(roots) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(|e| bad(path, e))?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        builder.with_single_cert(certificates(path)?, private_key(&self.files.private_key)?).map_err(|e| bad(path, e))
    }

    /// Accepts a connection.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<BoxStream> {
        let config = self.server().map_err(io::Error::other)?;
        Ok(Box::new(TlsAcceptor::from(Arc::new(config)).accept(stream).await?))
    }

    fn client(&self, verifier: Arc<Verifier>) -> Result<ClientConfig, Error> {
        let path = &self.files.certificate;
        ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| bad(path, e))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(certificates(path)?, private_key(&self.files.private_key)?)
            .map_err(|e| bad(path, e))
    }

    /// Connects over the streams that `dial` opens.
    pub(crate) async fn connect<Fut: Future<Output = io::Result<TcpStream>>>(
        &self,
        host: &str,
        dial: impl Fn() -> Fut,
    ) -> io::Result<BoxStream> {
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
        Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, dial().await?).await?))
    }
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
