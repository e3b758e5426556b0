//! Remembers which compiler built the benchmark, for its report.

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = std::process::Command::new(rustc).arg("--version").output();
    let version = version.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    println!("cargo:rustc-env=BENCH_RUSTC={}", version.as_deref().unwrap_or("unknown").trim());
    println!("cargo:rerun-if-changed=build.rs");
}
