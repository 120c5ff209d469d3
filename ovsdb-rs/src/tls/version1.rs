//! X.509 certificates of version 1, which `openssl x509 -req` makes unless it is given extensions, and which Open vSwitch
//! accepts. webpki verifies version 3 only (RFC 5280 section 4.1.2.1).
//!
//! Nothing in a certificate of version 1 says that it is no CA's, so one counts at the end of a chain alone: signed by a CA
//! that we trust, with nothing in between, and valid at the time.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, PeerMisbehaved};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::{ASN1Time, FromDer, X509Version};

/// Whether a certificate is of version 1.
pub(super) fn is_version_1(certificate: &[u8]) -> bool {
    parse(certificate).is_ok_and(|c| c.version() == X509Version::V1)
}

fn parse(certificate: &[u8]) -> Result<X509Certificate<'_>, rustls::Error> {
    match X509Certificate::from_der(certificate) {
        Ok((&[], c)) => Ok(c),
        _ => Err(CertificateError::BadEncoding.into()),
    }
}

/// The last common name in the subject of a certificate (RFC 5280 section 4.1.2.6).
pub(super) fn common_name(certificate: &[u8]) -> Option<String> {
    parse(certificate).ok()?.subject().iter_common_name().last()?.as_str().ok().map(String::from)
}

/// The public key in a certificate.
pub(super) fn public_key(certificate: &[u8]) -> Result<SubjectPublicKeyInfoDer<'static>, rustls::Error> {
    Ok(SubjectPublicKeyInfoDer::from(parse(certificate)?.public_key().raw.to_vec()))
}

/// Whether a certificate of version 1 is signed by one of these CAs and valid now.
///
/// # Errors
/// Why it is not.
pub(super) fn verify(
    certificate: &CertificateDer<'_>,
    authorities: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), rustls::Error> {
    let c = parse(certificate)?;
    let now = ASN1Time::from_timestamp(now.as_secs() as i64).map_err(|_| CertificateError::Expired)?;
    if now > c.validity().not_after {
        return Err(CertificateError::Expired.into());
    }
    if now < c.validity().not_before {
        return Err(CertificateError::NotValidYet.into());
    }
    let mut error = CertificateError::UnknownIssuer;
    for ca in authorities.iter().filter_map(|ca| parse(ca).ok()) {
        // An authority of version 1 is one because the operator says so.
        let signs = ca.version() == X509Version::V1 || ca.is_ca();
        if signs && ca.subject() == c.issuer() {
            match c.verify_signature(Some(ca.public_key())) {
                Ok(()) => return Ok(()),
                Err(_) => error = CertificateError::BadSignature,
            }
        }
    }
    Err(error.into())
}

/// What `rustls::crypto::verify_tls12_signature` does, for a certificate of version 1.
///
/// # Errors
/// As there.
pub(super) fn verify_tls12_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let c = parse(certificate)?;
    let key = &c.public_key().subject_public_key;
    let possible = algorithms.mapping.iter().find(|(scheme, _)| *scheme == dss.scheme);
    let (_, possible) = possible.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
    // Each algorithm takes keys of its own kind only, and refuses others.
    let good = possible.iter().any(|a| a.verify_signature(&key.data, message, dss.signature()).is_ok());
    if good { Ok(HandshakeSignatureValid::assertion()) } else { Err(CertificateError::BadSignature.into()) }
}

/// What `rustls::crypto::verify_tls13_signature` does, for a certificate of version 1.
///
/// # Errors
/// As there.
pub(super) fn verify_tls13_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    rustls::crypto::verify_tls13_signature_with_raw_key(message, &public_key(certificate)?, dss, algorithms)
}

/// Our certificate chain with its key, whatever its version.
///
/// # Errors
/// Where the key cannot be used, or is not the certificate's.
pub(super) fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<rustls::sign::CertifiedKey, rustls::Error> {
    if !chain.first().is_some_and(|c| is_version_1(c)) {
        return rustls::sign::CertifiedKey::from_der(chain, key, provider);
    }
    let key = provider.key_provider.load_private_key(key)?;
    if let (Some(own), Some(c)) = (key.public_key(), chain.first())
        && own != public_key(c)?
    {
        return Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch));
    }
    Ok(rustls::sign::CertifiedKey::new(chain, key))
}
