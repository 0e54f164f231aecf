//! Fencing: a store that rejects a former leader.
//!
//! An election cannot prevent a late effect of a leader that was paused between its check and its effect. Only the
//! resource can. The fencing token increases with every term, so the resource stores the greatest token it has seen and
//! rejects smaller ones. The resource in this example is a ConfigMap. Its writes contain the token and the version that
//! was read, so that check and write are one step.
#![allow(clippy::print_stdout, reason = "the example prints what happens")]

use std::collections::BTreeMap;

use anyhow::bail;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use tenure::{Elector, FencingToken, Tenure};

const KEY: &str = "token";

/// A store of one value that only the current leader can write.
struct FencedStore {
    maps: Api<ConfigMap>,
}

impl FencedStore {
    async fn write(&self, token: &FencingToken, value: &str) -> anyhow::Result<()> {
        let mut map = match self.maps.get_opt("fenced-store").await? {
            Some(map) => map,
            None => {
                let mut map = ConfigMap::default();
                map.metadata.name = Some("fenced-store".to_owned());
                self.maps.create(&PostParams::default(), &map).await?
            }
        };
        let data: &mut BTreeMap<_, _> = map.data.get_or_insert_default();
        if let Some(seen) = data.get(KEY) {
            let seen: FencingToken = seen.parse()?;
            if *token < seen {
                bail!("token {token} is rejected: a leader with token {seen} has already written");
            }
        }
        data.insert(KEY.to_owned(), token.to_string());
        data.insert("value".to_owned(), value.to_owned());
        // The write conflicts unless the version that was read is still current.
        self.maps
            .replace("fenced-store", &PostParams::default(), &map)
            .await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let config = kube::Config::infer().await?;
    let maps = Api::namespaced(Client::try_from(config.clone())?, "default");
    let store = FencedStore { maps };

    let elector = Elector::lease(tenure::client(config)?, "default", "fenced-example").build()?;
    let former = elector
        .run(tokio::signal::ctrl_c(), async |tenure: Tenure| {
            store.write(tenure.token(), "from the first term").await?;
            println!("term {} has written", tenure.token());
            // Assume that this leader is paused here for a minute and another one leads in the meantime.
            Ok::<_, anyhow::Error>(tenure.observer())
        })
        .await;
    let Some(former) = former.output().transpose()? else {
        return Ok(());
    };

    let config = kube::Config::infer().await?;
    let elector = Elector::lease(tenure::client(config)?, "default", "fenced-example").build()?;
    elector
        .run(tokio::signal::ctrl_c(), async |tenure: Tenure| {
            store.write(tenure.token(), "from the second term").await?;
            println!("term {} has written", tenure.token());
            Ok::<_, anyhow::Error>(())
        })
        .await
        .output()
        .transpose()?;

    // The former leader resumes and continues as if it still led.
    match store.write(former.token(), "too late").await {
        Ok(()) => println!("the late write was accepted"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}
