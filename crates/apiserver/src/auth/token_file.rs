//! Static bearer tokens, in the format of kube-apiserver's `--token-auth-file`.
//!
//! One line per token: `token,user,uid[,"group1,group2"]`. Empty lines and lines that begin with `#` are ignored. If a
//! token occurs twice, the last line is used.

use std::collections::HashMap;

use super::User;

/// Static tokens and their users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenFile {
    users: HashMap<String, User>,
}

/// Error in a token file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenFileError {
    /// A line has too few columns.
    #[error("token file line {0}: expected token,user,uid and optionally \"group1,group2\"")]
    Columns(usize),
    /// A line has no token or no user.
    #[error("token file line {0}: the token and the user must not be empty")]
    Empty(usize),
    /// A quoted column does not end.
    #[error("token file line {0}: a quoted column has no closing quote")]
    Quote(usize),
}

impl TokenFile {
    /// Parses the text of a token file.
    ///
    /// # Errors
    /// Returns the number of the first invalid line.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut file = Self::default();
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let columns = columns(line).ok_or(TokenFileError::Quote(number))?;
            let [token, name, uid, rest @ ..] = columns.as_slice() else {
                return Err(TokenFileError::Columns(number));
            };
            if token.is_empty() || name.is_empty() {
                return Err(TokenFileError::Empty(number));
            }
            let groups = rest
                .first()
                .map_or("", String::as_str)
                .split(',')
                .map(str::trim);
            let mut user = User::new(name, groups.filter(|g| !g.is_empty()).map(str::to_owned));
            user.uid.clone_from(uid);
            file.users.insert(token.clone(), user);
        }
        Ok(file)
    }

    /// Adds one token.
    pub fn insert(&mut self, token: impl Into<String>, user: User) {
        self.users.insert(token.into(), user);
    }

    /// Adds the tokens of another file.
    pub fn extend(&mut self, other: Self) {
        self.users.extend(other.users);
    }

    /// Returns the user of a token.
    #[must_use]
    pub fn user(&self, token: &str) -> Option<User> {
        self.users.get(token).cloned()
    }
}

/// Splits a CSV line into its columns; `None` if a closing quote is missing.
fn columns(line: &str) -> Option<Vec<String>> {
    let mut columns = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start();
        let (column, after) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim().to_owned(), &rest[end..])
            }
        };
        columns.push(column);
        match after.trim_start().strip_prefix(',') {
            Some(more) => rest = more,
            None => return Some(columns),
        }
    }
}

/// Reads up to the closing quote. Two quotes in a row mean one.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut column = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"')?;
        column.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                column.push('"');
                rest = more;
            }
            None => return Some((column, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_file_in_the_format_of_kube_apiserver_is_parsed() {
        let file = TokenFile::parse(
            "# who\nadmintoken,admin,admin,\"system:masters\"\n\nt2,bob,bob\nt3, eve ,7,\"a,b\"\n",
        )
        .unwrap();
        let admin = file.user("admintoken").unwrap();
        assert_eq!(admin.groups, ["system:masters", "system:authenticated"]);
        assert_eq!(file.user("t2").unwrap().uid, "bob");
        assert_eq!(
            file.user("t3").unwrap().groups,
            ["a", "b", "system:authenticated"]
        );
        assert_eq!(file.user("t3").unwrap().name, "eve");
        assert_eq!(file.user("nope"), None);
    }

    #[test]
    fn invalid_line_is_reported_with_its_number() {
        let error = |text| TokenFile::parse(text).unwrap_err();
        assert_eq!(error("a,b,c\nx,y"), TokenFileError::Columns(2));
        assert_eq!(error(",b,c"), TokenFileError::Empty(1));
        assert_eq!(error("a,b,c,\"d"), TokenFileError::Quote(1));
    }
}
