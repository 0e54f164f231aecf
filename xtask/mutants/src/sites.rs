//! Finds possible changes of a file: operators, conditions, match arms, function bodies.
//!
//! The kinds of changes are those of cargo-mutants. Code of tests, of macros, of `const fn` and of seeded bugs is excluded.

use std::ops::Range;

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use crate::seeded::{self, Names};

/// A place in the text, and the changes that can be made there.
#[derive(Debug)]
pub(crate) struct Site {
    /// The replaced text.
    pub(crate) range: Range<usize>,
    pub(crate) shape: Shape,
    pub(crate) changes: Vec<Change>,
}

/// How a change is written into the text, so that a switch decides at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// An expression; a change is another expression.
    Expression,
    /// The empty position at the beginning of a body; a change is a statement.
    Body,
    /// The empty position after the pattern of a match arm without a guard; the change is to skip the arm.
    Arm,
}

/// One change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Its name, for example `replace == with !=`.
    pub(crate) name: String,
    /// The function that contains it.
    pub(crate) function: String,
    /// The original text.
    pub(crate) original: String,
    /// The replacement.
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// Returns all possible changes of a file.
pub(crate) fn find(source: &str) -> Result<Vec<Site>, syn::Error> {
    let file = syn::parse_file(source)?;
    let mut finder = Finder {
        source,
        sites: Vec::new(),
        owner: String::new(),
        function: Vec::new(),
        seeded: Names::new(),
    };
    finder.visit_file(&file);
    finder
        .sites
        .sort_by_key(|site| (site.range.start, usize::MAX - site.range.end));
    Ok(finder.sites)
}

struct Finder<'a> {
    source: &'a str,
    sites: Vec<Site>,
    /// The type of the `impl`.
    owner: String,
    /// The enclosing functions.
    function: Vec<String>,
    /// The variables of the function that are false unless a bug is seeded.
    seeded: Names,
}

impl Finder<'_> {
    fn text(&self, range: Range<usize>) -> &str {
        self.source.get(range).unwrap_or_default()
    }

    fn add(
        &mut self,
        range: Range<usize>,
        shape: Shape,
        shown: Range<usize>,
        changes: Vec<(String, String)>,
    ) {
        if self.function.is_empty() || changes.is_empty() {
            return;
        }
        let line = 1 + self.text(0..shown.start).matches('\n').count();
        let original = one_line(self.text(shown));
        let change = |(name, text)| Change {
            name,
            function: self.function.join("::"),
            original: original.clone(),
            text,
            line,
        };
        let changes = changes.into_iter().map(change).collect();
        self.sites.push(Site {
            range,
            shape,
            changes,
        });
    }

    fn add_function(&mut self, name: &str, signature: &syn::Signature, block: &syn::Block) {
        if seeded::is_question(signature, block) {
            return;
        }
        let name = if self.owner.is_empty() || !self.function.is_empty() {
            name.to_owned()
        } else {
            format!("{}::{name}", self.owner)
        };
        self.function.push(name);
        let outer = std::mem::take(&mut self.seeded);
        let at = block.brace_token.span.open().byte_range().end;
        let values = returns(&signature.output);
        let changes = values.into_iter().map(|value| {
            (
                format!("return {}", if value.is_empty() { "()" } else { &value }),
                format!("return {value};"),
            )
        });
        if !block.stmts.is_empty() {
            let shown = signature.span().byte_range();
            self.add(at..at, Shape::Body, shown, changes.collect());
        }
        visit::visit_block(self, block);
        self.seeded = outer;
        self.function.pop();
    }

    fn add_arm(&mut self, arm: &syn::Arm, deletable: bool) {
        let shown = arm.pat.span().byte_range();
        match &arm.guard {
            Some((_, guard)) if has_let(guard) => {}
            Some((_, guard)) => {
                let changes = ["true", "false"]
                    .map(|value| (format!("replace guard with {value}"), value.to_owned()));
                self.add(
                    guard.span().byte_range(),
                    Shape::Expression,
                    shown,
                    changes.to_vec(),
                );
            }
            None if deletable => {
                let delete = ("delete match arm".to_owned(), String::new());
                self.add(shown.end..shown.end, Shape::Arm, shown, vec![delete]);
            }
            None => {}
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_left_out(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of_debug = item
            .trait_
            .as_ref()
            .is_some_and(|(_, path, _)| path.segments.last().is_some_and(|s| s.ident == "Debug"));
        if is_left_out(&item.attrs) || of_debug {
            return;
        }
        let owner = one_line(self.text(item.self_ty.span().byte_range()));
        let outer = std::mem::replace(&mut self.owner, owner);
        visit::visit_item_impl(self, item);
        self.owner = outer;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_left_out(&item.attrs) && item.sig.constness.is_none() {
            let outer = std::mem::take(&mut self.owner);
            self.add_function(&item.sig.ident.to_string(), &item.sig, &item.block);
            self.owner = outer;
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_left_out(&item.attrs) && item.sig.constness.is_none() {
            self.add_function(&item.sig.ident.to_string(), &item.sig, &item.block);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}

    fn visit_expr(&mut self, expression: &'ast syn::Expr) {
        if !seeded::is_false(expression, &self.seeded) {
            visit::visit_expr(self, expression);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        visit::visit_local(self, local);
        self.seeded.extend(seeded::name_of(local, &self.seeded));
    }

    fn visit_expr_if(&mut self, expression: &'ast syn::ExprIf) {
        if !seeded::is_false(&expression.cond, &self.seeded) {
            visit::visit_expr_if(self, expression);
        } else if let Some((_, other)) = &expression.else_branch {
            self.visit_expr(other);
        }
    }

    fn visit_expr_binary(&mut self, expression: &'ast syn::ExprBinary) {
        let op = expression.op.span().byte_range();
        let range = expression.span().byte_range();
        let pointless = seeded::joins_false(expression, &self.seeded);
        if !has_let(&syn::Expr::Binary(expression.clone())) && !pointless {
            let from = self.text(op.clone()).to_owned();
            let (left, right) = (
                self.text(range.start..op.start).to_owned(),
                self.text(op.end..range.end).to_owned(),
            );
            let changes = others(&from).iter().map(|to| {
                (
                    format!("replace {from} with {to}"),
                    format!("{left}{to}{right}"),
                )
            });
            let changes = changes.collect();
            self.add(range.clone(), Shape::Expression, range, changes);
        }
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_unary(&mut self, expression: &'ast syn::ExprUnary) {
        let op = expression.op.span().byte_range();
        let range = expression.span().byte_range();
        if matches!(expression.op, syn::UnOp::Not(_) | syn::UnOp::Neg(_)) {
            let from = self.text(op.clone()).to_owned();
            let text = self.text(op.end..range.end).to_owned();
            self.add(
                range.clone(),
                Shape::Expression,
                range,
                vec![(format!("delete {from}"), text)],
            );
        }
        visit::visit_expr_unary(self, expression);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        let wild = |arm: &syn::Arm| matches!(arm.pat, syn::Pat::Wild(_)) && arm.guard.is_none();
        let has_wild = expression.arms.iter().any(wild);
        let asks = seeded::is_false(&expression.expr, &self.seeded);
        self.visit_expr(&expression.expr);
        for arm in &expression.arms {
            let guard = arm.guard.as_ref().map(|(_, guard)| guard);
            let by_guard = guard.is_some_and(|guard| seeded::is_false(guard, &self.seeded));
            let unreached = by_guard || (asks && seeded::is_true_arm(arm));
            if !unreached {
                self.add_arm(arm, has_wild && !wild(arm));
                self.visit_arm(arm);
            }
        }
    }
}

/// Returns the replacements of an operator.
fn others(op: &str) -> &'static [&'static str] {
    match op {
        "==" => &["!="],
        "!=" => &["=="],
        "&&" => &["||"],
        "||" => &["&&"],
        "<" => &["==", ">", "<="],
        ">" => &["==", "<", ">="],
        "<=" => &[">", "<"],
        ">=" => &["<", ">"],
        "+" => &["-", "*"],
        "-" => &["+", "/"],
        "*" => &["+", "/"],
        "/" => &["%", "*"],
        "%" => &["/", "+"],
        "&" => &["|", "^"],
        "|" => &["&", "^"],
        "^" => &["&", "|"],
        "<<" => &[">>"],
        ">>" => &["<<"],
        "+=" => &["-=", "*="],
        "-=" => &["+=", "/="],
        "*=" => &["+=", "/="],
        "/=" => &["%=", "*="],
        "|=" => &["&=", "^="],
        "&=" => &["|=", "^="],
        "^=" => &["|=", "&="],
        "<<=" => &[">>="],
        ">>=" => &["<<="],
        _ => &[],
    }
}

/// Returns values that a function may return immediately, by its type. Values that do not compile are omitted later.
fn returns(output: &syn::ReturnType) -> Vec<String> {
    match output {
        syn::ReturnType::Default => vec![String::new()],
        syn::ReturnType::Type(_, kind) => values(kind, 0),
    }
}

fn values(kind: &syn::Type, depth: usize) -> Vec<String> {
    let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    match kind {
        syn::Type::Tuple(tuple) if tuple.elems.is_empty() => owned(&["()"]),
        syn::Type::Reference(reference) if is_named(&reference.elem, "str") => {
            owned(&["\"\"", "\"xyzzy\""])
        }
        syn::Type::Path(path) => {
            let Some(last) = path.path.segments.last() else {
                return Vec::new();
            };
            let inner = || {
                inner(last)
                    .into_iter()
                    .filter(|_| depth == 0)
                    .flat_map(|kind| values(kind, 1))
                    .collect::<Vec<_>>()
            };
            let wrapped = |with: &str| {
                inner()
                    .into_iter()
                    .map(|value| format!("{with}({value})"))
                    .collect::<Vec<_>>()
            };
            match last.ident.to_string().as_str() {
                "bool" => owned(&["true", "false"]),
                "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => owned(&["0", "1"]),
                "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => owned(&["0", "1", "-1"]),
                "f32" | "f64" => owned(&["0.0", "1.0"]),
                "String" => owned(&["String::new()", "String::from(\"xyzzy\")"]),
                "Option" => [owned(&["None"]), wrapped("Some")].concat(),
                "Result" => wrapped("Ok"),
                "Vec" => owned(&["Vec::new()"]),
                "Ordering" => owned(&[
                    "std::cmp::Ordering::Less",
                    "std::cmp::Ordering::Equal",
                    "std::cmp::Ordering::Greater",
                ]),
                _ => owned(&["Default::default()"]),
            }
        }
        _ => Vec::new(),
    }
}

fn inner(segment: &syn::PathSegment) -> Option<&syn::Type> {
    let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return None;
    };
    match arguments.args.first()? {
        syn::GenericArgument::Type(kind) => Some(kind),
        _ => None,
    }
}

fn is_named(kind: &syn::Type, name: &str) -> bool {
    matches!(kind, syn::Type::Path(path) if path.path.is_ident(name))
}

/// Returns whether a condition contains `let`, which is not allowed in a separate expression.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Whether code is for tests, or for the seeded bugs.
fn is_left_out(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = match &attribute.meta {
            syn::Meta::List(list) => list.tokens.to_string(),
            _ => String::new(),
        };
        let name = attribute.path();
        name.is_ident("test")
            || (name.is_ident("cfg") && (text.contains("test") || text.contains("mutants")))
    })
}

/// Returns a text in one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
