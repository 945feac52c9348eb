//! Models that keep nothing between tokens: encoders.

use super::Layer;
use crate::fit::CannotSay;
use crate::fit::config::Config;

/// Types that are encoders unless their class says that they decode.
const TYPES: [&str; 37] = [
    "albert",
    "bert",
    "big_bird",
    "camembert",
    "clip",
    "clip_vision_model",
    "convbert",
    "data2vec-text",
    "deberta",
    "deberta-v2",
    "dinov2",
    "distilbert",
    "electra",
    "ernie",
    "esm",
    "eurobert",
    "flaubert",
    "hubert",
    "luke",
    "megatron-bert",
    "modernbert",
    "mpnet",
    "new",
    "nomic_bert",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "siglip",
    "siglip_vision_model",
    "vit",
    "wav2vec2",
    "wavlm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
];

/// An encoder's layers: none that keep anything.
pub(super) fn of(config: &Config<'_>) -> Result<Option<Vec<Layer>>, CannotSay> {
    let decodes = || {
        let class = config.architecture().unwrap_or_default();
        Ok::<_, CannotSay>(
            config.flag("is_decoder")? || class.ends_with("LMHeadModel") || class.ends_with("CausalLM"),
        )
    };
    if TYPES.contains(&config.model_type) && !decodes()? {
        config.assume("an encoder: nothing is kept between tokens".to_owned());
        return Ok(Some(Vec::new()));
    }
    Ok(None)
}
