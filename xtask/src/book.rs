//! `cargo xtask book`: builds docs/book with mdBook. `book-links` is its preprocessor: links to files of the repository
//! that are not in the book lead to the page that includes the file, or become text.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{root, target};
use crate::setup;

/// The folder of the pages.
pub(crate) const PAGES: &str = "docs/book";

/// Begins a page whose text is a file outside the book.
const INCLUDE: &str = "{{#include ";

/// Builds the book below target/. Every warning of mdBook is an error.
pub(crate) fn run() -> Result<()> {
    build(&setup::mdbook()?)
}

/// Does the same as a check. Outside of CI, it prints the reason and passes if mdBook cannot be installed.
pub(crate) fn check() -> Result<()> {
    match setup::mdbook() {
        Ok(mdbook) => build(&mdbook),
        Err(error) if crate::test::strict() => Err(error),
        Err(error) => {
            eprintln!("note: the book is not built: cannot install mdBook: {error:#}");
            Ok(())
        }
    }
}

fn build(mdbook: &Path) -> Result<()> {
    let output = target().join("book");
    let links = format!("{} book-links", std::env::current_exe()?.display());
    eprintln!("$ mdbook build docs");
    let built = Command::new(mdbook)
        .args(["build", "docs", "--dest-dir"])
        .arg(&output)
        .env("MDBOOK_PREPROCESSOR__REPOSITORY__COMMAND", links)
        .env("MDBOOK_LOG", "warn")
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .context("cannot run mdbook")?;
    let said = String::from_utf8_lossy(&built.stderr);
    let warned = said
        .lines()
        .any(|line| !line.trim_start().starts_with("INFO"));
    if !built.status.success() || warned {
        bail!("mdbook build docs ended with {}:\n{said}", built.status);
    }
    eprintln!("book: {}", output.join("index.html").display());
    Ok(())
}

/// The preprocessor. mdBook writes the book to standard input and reads it from standard output.
pub(crate) fn links(args: &[String]) -> Result<()> {
    if args.first().is_some_and(|arg| arg == "supports") {
        return Ok(());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut input: Value = serde_json::from_str(&text).context("the input of mdBook")?;
    let book = input.get_mut(1).context("mdBook sent no book")?;
    let mut pages = BTreeMap::new();
    each_chapter(book, &mut |page, content| {
        let source = source(page, content);
        if source != Path::new(PAGES).join(page) {
            pages.insert(source, page.to_owned());
        }
        Ok(())
    })?;
    each_chapter(book, &mut |page, content| {
        let source = source(page, content);
        if pages.contains_key(&source) {
            let file = root().join(&source);
            *content = std::fs::read_to_string(&file)
                .with_context(|| format!("{page} includes {}", file.display()))?;
        }
        *content = rewritten(content, &source, page, &pages);
        Ok(())
    })?;
    println!("{book}");
    Ok(())
}

/// Calls the function with the path and the text of each page of a book.
fn each_chapter(
    value: &mut Value,
    call: &mut dyn FnMut(&str, &mut String) -> Result<()>,
) -> Result<()> {
    for key in ["items", "sub_items"] {
        let items = value.get_mut(key).and_then(Value::as_array_mut);
        for item in items.into_iter().flatten() {
            let Some(chapter) = item.get_mut("Chapter") else {
                continue;
            };
            let page = chapter["path"].as_str().unwrap_or_default().to_owned();
            if let Some(Value::String(content)) = chapter.get_mut("content") {
                call(&page, content)?;
            }
            each_chapter(chapter, call)?;
        }
    }
    Ok(())
}

/// Returns the file of the repository that has the text of a page.
pub(crate) fn source(page: &str, content: &str) -> PathBuf {
    let path = Path::new(PAGES).join(page);
    let included = content.trim().strip_prefix(INCLUDE);
    match included.and_then(|rest| rest.strip_suffix("}}")) {
        Some(file) if !file.contains('\n') => {
            let folder = path.parent().unwrap_or(Path::new(""));
            normal(&folder.join(file.trim()))
        }
        _ => path,
    }
}

/// Rewrites the relative links of a text that `source` contains and that is shown as `page`. `pages` are the included
/// files and their pages.
fn rewritten(text: &str, source: &Path, page: &str, pages: &BTreeMap<PathBuf, String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut code = false;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        if code {
            result += line;
            continue;
        }
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("](") {
            let Some((link, after)) = after.split_once(')') else {
                break;
            };
            result += before;
            rest = after;
            match replacement(link, source, page, pages) {
                Some(link) => result = result + "](" + &link + ")",
                None => unlink(&mut result),
            }
        }
        result += rest;
    }
    result
}

/// Returns the target of a link in the book, or nothing if the target is a file that the book does not contain.
fn replacement(
    link: &str,
    source: &Path,
    page: &str,
    pages: &BTreeMap<PathBuf, String>,
) -> Option<String> {
    let (path, anchor) = match link.split_once('#') {
        Some((path, anchor)) => (path, format!("#{anchor}")),
        None => (link, String::new()),
    };
    if path.is_empty() || path.contains("://") || path.contains(' ') {
        return Some(link.to_owned());
    }
    let folder = source.parent().unwrap_or(Path::new(""));
    let file = normal(&folder.join(path));
    let below = match file.strip_prefix(PAGES) {
        Ok(below) => below.to_path_buf(),
        Err(_) => PathBuf::from(pages.get(&file)?),
    };
    let depth = Path::new(page).components().count().saturating_sub(1);
    Some("../".repeat(depth) + &below.to_string_lossy() + &anchor)
}

/// Replaces a link at the end of a text, which ends in front of `](`, with the text of the link.
fn unlink(text: &mut String) {
    if let Some(start) = text.rfind('[') {
        text.remove(start);
    }
}

/// Removes `.` and `..` from a path.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_page_stay_in_the_book_or_become_text() {
        let pages = [("deploy/README.md", "how-to/deploy.md")];
        let pages = pages.map(|(file, page)| (PathBuf::from(file), page.to_owned()));
        let pages = BTreeMap::from(pages);
        let shown =
            |text: &str, source: &str, page: &str| rewritten(text, Path::new(source), page, &pages);
        let page = "docs/book/reference/wire.md";
        for (text, expected) in [
            (
                "see [a](../explanation/safety.md#b).",
                "see [a](../explanation/safety.md#b).",
            ),
            ("[a](storage.md)", "[a](../reference/storage.md)"),
            ("[a](#b) [c](https://d.e/f)", "[a](#b) [c](https://d.e/f)"),
            (
                "[a](../../../deploy/README.md#b)",
                "[a](../how-to/deploy.md#b)",
            ),
            ("[1] [`a`](../../../deploy/Dockerfile)!", "[1] `a`!"),
            ("```\n[a](../../../x)\n```\n", "```\n[a](../../../x)\n```\n"),
        ] {
            assert_eq!(shown(text, page, "reference/wire.md"), expected);
        }
        let included = shown(
            "[a](../docs/book/images/a.png) [b](sidecar.yaml)",
            "deploy/README.md",
            "how-to/deploy.md",
        );
        assert_eq!(included, "[a](../images/a.png) b");
    }

    #[test]
    fn page_of_one_include_has_the_source_of_the_file() {
        let included = source(
            "how-to/deploy.md",
            "{{#include ../../../deploy/README.md}}\n",
        );
        assert_eq!(included, Path::new("deploy/README.md"));
        let own = source("how-to/a.md", "# A\n\n{{#include b.rs}}\n");
        assert_eq!(own, Path::new("docs/book/how-to/a.md"));
    }

    #[test]
    fn chapters_below_chapters_are_visited() {
        let chapter = |path: &str, below: Value| serde_json::json!({ "Chapter": { "path": path, "content": "", "sub_items": below } });
        let below = serde_json::json!([chapter("b.md", Value::Array(Vec::new()))]);
        let mut book =
            serde_json::json!({ "items": [{ "PartTitle": "x" }, chapter("a.md", below)] });
        let mut seen = Vec::new();
        each_chapter(&mut book, &mut |page, content| {
            seen.push(page.to_owned());
            content.push('x');
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, ["a.md", "b.md"]);
        assert_eq!(
            book["items"][1]["Chapter"]["sub_items"][0]["Chapter"]["content"],
            "x"
        );
    }
}
