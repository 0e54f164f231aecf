//! A value decrypts only with its key, unchanged, and for its own object. Key files are private.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

fn sealed(encryption: &Encryption, associated: &str, value: &str) -> Vec<u8> {
    let sealed = encryption.seal(SECRETS, associated.as_bytes(), value.as_bytes());
    sealed.unwrap().expect("secrets are encrypted")
}

#[test]
fn sealed_value_opens_only_unchanged_and_for_its_object() {
    let keys = Encryption::of(&[1], Scope::Secrets);
    let id = keys.writing_key().unwrap();
    for value in ["", "x", "a longer value with \"quotes\""] {
        let sealed = sealed(&keys, "a", value);
        let opened = keys.open(b"a", &sealed).unwrap();
        assert_eq!(opened, (id, value.as_bytes().to_vec()));
        assert_eq!(keys.open(b"b", &sealed), Err(DecryptError::Changed(id)));
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut bad = sealed.clone();
                bad[at] ^= 1 << bit;
                let error = keys.open(b"a", &bad).unwrap_err();
                let expected = match at {
                    0 => error == DecryptError::Unknown,
                    1..=8 => error.needs_key(),
                    _ => error == DecryptError::Changed(id),
                };
                assert!(expected, "byte {at}, bit {bit}: {error}");
            }
        }
        for length in 0..sealed.len() {
            assert!(keys.open(b"a", &sealed[..length]).is_err(), "{length}");
        }
        let longer = [&sealed[..], b"x"].concat();
        assert!(keys.open(b"a", &longer).is_err());
    }
}

#[test]
fn equal_values_have_different_ciphertexts() {
    let keys = Encryption::of(&[1], Scope::Secrets);
    let all: std::collections::HashSet<_> = (0..1000).map(|_| sealed(&keys, "a", "x")).collect();
    assert_eq!(all.len(), 1000);
    let salts: std::collections::HashSet<_> = all.iter().map(|s| s[9..25].to_vec()).collect();
    assert_eq!(salts.len(), 1000);
}

#[test]
fn first_key_writes_and_every_key_reads() {
    let old = Encryption::of(&[1], Scope::Secrets);
    let both = Encryption::of(&[2, 1], Scope::Secrets);
    let new = Encryption::of(&[2], Scope::Secrets);
    let value = sealed(&old, "a", "x");
    assert_eq!(
        both.open(b"a", &value).unwrap().0,
        old.writing_key().unwrap()
    );
    let value = sealed(&both, "a", "x");
    assert_eq!(
        new.open(b"a", &value).unwrap().0,
        new.writing_key().unwrap()
    );
    let error = old.open(b"a", &value).unwrap_err().to_string();
    let id = new.writing_key().unwrap();
    assert_eq!(
        error,
        format!(
            "is encrypted with key {id}, which is not in /etc/tenure/keys; add this key to the file"
        )
    );
    let error = Encryption::OFF.open(b"a", &value).unwrap_err().to_string();
    assert!(error.contains(&format!("key {id}")) && error.contains("--encryption-key-file"));
}

#[test]
fn scope_decides_which_values_are_encrypted() {
    for (scope, secrets, others) in [
        (Scope::Secrets, true, false),
        (Scope::All, true, true),
        (Scope::None, false, false),
    ] {
        let keys = Encryption::of(&[1], scope);
        assert_eq!(keys.key_for(SECRETS).is_some(), secrets);
        assert_eq!(keys.key_for("/configmaps").is_some(), others);
        assert_eq!(
            keys.seal("/configmaps", b"", b"").unwrap().is_some(),
            others
        );
        assert_eq!(keys.writing_key().is_some(), secrets);
    }
    assert!(!Encryption::OFF.has_keys());
}

#[test]
fn debug_output_has_no_keys() {
    let shown = format!("{:?}", Encryption::of(&[7], Scope::All));
    assert!(shown.contains("KeyId("), "{shown}");
    assert!(!shown.contains("7, 7"), "{shown}");
}

#[test]
fn created_key_file_is_private_usable_and_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    let id = Encryption::create_key_file(&file).unwrap();
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let read = Encryption::read(&file, Scope::Secrets).unwrap();
    assert_eq!(read.writing_key(), Some(id));
    let before = fs::read(&file).unwrap();
    let error = Encryption::create_key_file(&file).unwrap_err();
    assert!(matches!(error, KeyFileError::Exists(_)), "{error}");
    assert_eq!(fs::read(&file).unwrap(), before);
    let other = dir.path().join("other");
    assert_ne!(Encryption::create_key_file(&other).unwrap(), id);
    // A rotation concatenates two key files.
    let both = [before, fs::read(&other).unwrap()].concat();
    fs::write(&file, both).unwrap();
    let read = Encryption::read(&file, Scope::Secrets).unwrap();
    assert_eq!(read.writing_key(), Some(id));
    assert_eq!(read.0.unwrap().keys.len(), 2);
}

#[test]
fn key_file_of_others_is_rejected_with_the_command_that_mends_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    Encryption::create_key_file(&file).unwrap();
    let link = dir.path().join("link");
    symlink(&file, &link).unwrap();
    let read = |mode| {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        Encryption::read(&link, Scope::Secrets)
    };
    for mode in [0o600, 0o400] {
        read(mode).unwrap();
    }
    for mode in [0o644, 0o604, 0o620, 0o660, 0o602] {
        let error = read(mode).unwrap_err().to_string();
        let mend = format!("run `chmod 600 {}`", link.display());
        assert!(error.ends_with(&mend), "{mode:04o}: {error}");
    }
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
        let error = Encryption::read(&file, Scope::Secrets).unwrap_err();
        assert!(error.to_string().contains("run `chown 0 "), "{error}");
    }
}

#[test]
fn invalid_key_file_is_rejected_without_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    let key = STANDARD.encode([7; 32]);
    let large = "#".repeat(65 << 10);
    for (text, expected) in [
        ("", "it has no key"),
        ("# only a comment\n\n", "it has no key"),
        ("hunter2", "line 1 is not a key"),
        (&format!("{key}\n{}", &key[1..]), "line 2 is not a key"),
        (&STANDARD.encode([7; 16]), "line 1 is not a key"),
        (&large, "more than 65536 bytes"),
    ] {
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let error = Encryption::read(&file, Scope::Secrets)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains(&file.display().to_string()), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    fs::write(&file, format!("\n  {key}  \n# again:\n{key}\n")).unwrap();
    let read = Encryption::read(&file, Scope::Secrets).unwrap();
    assert_eq!(read.0.unwrap().keys.len(), 1);
    assert!(Encryption::read(dir.path().join("absent"), Scope::All).is_err());
    assert!(Encryption::read(dir.path(), Scope::All).is_err());
}
