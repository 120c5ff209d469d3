//! Tells the program which DPDK it is linked with.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    match pkg_config::Config::new().atleast_version("22.11").cargo_metadata(false).probe("libdpdk") {
        Ok(d) => println!("cargo:rustc-env=ISTHMUS_DPDK_VERSION=DPDK {}", d.version),
        Err(e) => {
            eprintln!("libdpdk 22.11 or newer is needed (Debian: apt-get install libdpdk-dev): {e}");
            std::process::exit(1);
        }
    }
}
