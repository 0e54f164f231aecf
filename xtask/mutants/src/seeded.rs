//! Finds the code that only a seeded bug of the simulator reaches.
//!
//! As the crates are shipped, no bug is seeded: `self.is(Mutant::X)` is always false. A change of code behind such a
//! condition has no effect, so it is not counted.

use std::collections::BTreeSet;

/// Local variables that are false unless a bug is seeded.
pub(crate) type Names = BTreeSet<String>;

/// Whether an expression is always false in the shipped crates.
pub(crate) fn is_false(expression: &syn::Expr, names: &Names) -> bool {
    match expression {
        syn::Expr::Paren(inner) => is_false(&inner.expr, names),
        syn::Expr::Path(path) => path
            .path
            .get_ident()
            .is_some_and(|name| names.contains(&name.to_string())),
        syn::Expr::MethodCall(call) => call.method == "is" && call.args.iter().any(is_mutant),
        syn::Expr::Binary(binary) => {
            let (left, right) = (
                is_false(&binary.left, names),
                is_false(&binary.right, names),
            );
            match binary.op {
                syn::BinOp::And(_) => left || right,
                syn::BinOp::Or(_) => left && right,
                _ => false,
            }
        }
        _ => false,
    }
}

/// Whether both operands are always false in the shipped crates. In that case `||` and `&&` give the same result.
pub(crate) fn joins_false(binary: &syn::ExprBinary, names: &Names) -> bool {
    let left = match &*binary.left {
        syn::Expr::Binary(inner) if matches!(inner.op, syn::BinOp::Or(_)) => &inner.right,
        _ => &binary.left,
    };
    matches!(binary.op, syn::BinOp::Or(_))
        && is_false(left, names)
        && is_false(&binary.right, names)
}

/// Whether a match on such an expression has an arm for `true`.
pub(crate) fn is_true_arm(arm: &syn::Arm) -> bool {
    matches!(&arm.pat, syn::Pat::Lit(lit) if matches!(&lit.lit, syn::Lit::Bool(value) if value.value))
}

/// The variable to which a statement assigns a value that is always false in the shipped crates.
pub(crate) fn name_of(local: &syn::Local, names: &Names) -> Option<String> {
    let syn::Pat::Ident(name) = &local.pat else {
        return None;
    };
    let value = &local.init.as_ref()?.expr;
    is_false(value, names).then(|| name.ident.to_string())
}

/// Whether a function only tests for a seeded bug: it takes the bug as a parameter, or its body is always false in the
/// shipped crates.
pub(crate) fn is_question(signature: &syn::Signature, block: &syn::Block) -> bool {
    let by_parameter = signature.inputs.iter().any(|input| match input {
        syn::FnArg::Typed(typed) => matches!(&*typed.ty, syn::Type::Path(path)
            if path.path.segments.last().is_some_and(|last| last.ident.to_string().ends_with("Mutant"))),
        syn::FnArg::Receiver(_) => false,
    });
    let by_body = matches!(&block.stmts[..], [syn::Stmt::Expr(body, None)]
        if is_false(body, &Names::new()));
    by_parameter || by_body
}

/// Whether an expression names a seeded bug: `Mutant::X`, `PairMutant::X`.
fn is_mutant(expression: &syn::Expr) -> bool {
    let syn::Expr::Path(path) = expression else {
        return false;
    };
    let segments: Vec<_> = path.path.segments.iter().collect();
    matches!(&segments[..], [.., kind, _] if kind.ident.to_string().ends_with("Mutant"))
}

#[cfg(test)]
mod tests {
    use crate::sites::find;

    fn names(source: &str) -> Vec<String> {
        let sites = find(source).unwrap();
        let changes = sites.iter().flat_map(|site| &site.changes);
        changes.map(|change| change.name.clone()).collect()
    }

    #[test]
    fn code_behind_a_seeded_bug_is_not_changed() {
        for body in [
            "if self.is(Mutant::A) { self.b = 1 + 2; }",
            "if self.is(Mutant::A) && self.b < 3 { self.b = 1 + 2; }",
            "if let Some(a) = self.b && self.is(Mutant::A) { self.b = a + 2; }",
            "let late = self.is(Mutant::A) || self.is(Mutant::B); if late { self.b = 1 + 2; }",
            "match self.b { 1 if self.is(Mutant::A) => 1 + 2, _ => 3 };",
            "match self.is(Mutant::A) { true => self.b / 2, false => self.b };",
            "self.c(self.is(Mutant::A) || self.is(Mutant::B));",
        ] {
            let source = format!("impl S {{ fn f(&mut self) {{ {body} }} }}");
            assert_eq!(names(&source), ["return ()"], "{body}");
        }
        let question = "impl S { fn is(&self, m: LifeMutant) -> bool { self.rules.is(m) } \
                        fn f(&self) -> bool { self.is(Mutant::A) || (self.is(Mutant::B) && self.c == 1) } }";
        assert_eq!(names(question), [""; 0]);
    }

    #[test]
    fn code_next_to_a_seeded_bug_is_changed() {
        for (condition, expected) in [
            ("a || self.is(Mutant::A)", vec!["replace || with &&"]),
            (
                "a && !self.is(Mutant::A)",
                vec!["replace && with ||", "delete !"],
            ),
            (
                "a || self.is(Mutant::A) || self.is(Mutant::B)",
                vec!["replace || with &&"],
            ),
        ] {
            let source = format!("impl S {{ fn f(&self) {{ if {condition} {{ g(); }} }} }}");
            assert_eq!(names(&source)[1..], expected, "{condition}");
        }
        let both = "impl S { fn f(&self) { if self.is(Mutant::A) { 1 } else { 2 - 3 }; } }";
        assert_eq!(
            names(both)[1..],
            ["replace - with +", "replace - with /"],
            "else"
        );
    }
}
