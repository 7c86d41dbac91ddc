//! The C header: generation from the sources, and compilation of the example.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `make c-library` writes the header.
#[test]
fn header_is_generated_from_the_sources() {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(folder().join("lib.rs"))
        .with_src(folder().join("guard.rs"));
    let mut made = Vec::new();
    bindings.generate().unwrap().write(&mut made);
    let path = folder().join("specds.h");
    if env::var_os("SPECDS_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let written = fs::read(&path).unwrap_or_default();
    let way_out = "`make c-library` brings the header up to date";
    assert!(made == written, "{way_out}");
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn example_compiles_in_c_and_cpp_and_drafts() {
    let out = tempfile::tempdir().unwrap();
    let program = out.path().join("example");
    let (test, source) = (env::current_exe().unwrap(), folder().join("example.c"));
    // The folder with this build's libraries.
    let (folder, source) = (test.parent().unwrap().display(), source.display());
    let shared = format!(
        "-std=c++20 -Wno-missing-field-initializers -xc++ {source} -L{folder} -lspecds -Wl,-rpath,{folder}"
    );
    let archive = format!("-std=c99 {source} {folder}/libspecds.a -lpthread -ldl -lm");
    for (compiler, options) in [("c++", shared), ("cc", archive)] {
        let mut compile = Command::new(compiler);
        compile.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
        compile.arg(self::folder()).arg("-o").arg(&program);
        run(compile.args(options.split(' ')));
        let said = run(&mut Command::new(&program));
        assert!(said.starts_with("31 tokens in 4 steps\n{\"configuration\":{"), "{said}");
        assert!(said.contains("\"num_accepted_tokens\":27,"), "{said}");
        let refused = Command::new(&program).arg("{\"datastor\": 1}").output();
        let said = String::from_utf8(refused.unwrap().stderr).unwrap();
        assert!(said.contains("unknown field `datastor`"), "{said}");
    }
}
