"""Runs anywhere (pure). Decide from the name of a metric whether larger values are better."""

import difflib
import re

# A word that contains one of these is minimized: `logloss`, `crossentropy`.
_MIN_PARTS = re.compile(r"loss(?!l)|error|entropy|perplex|latenc|regret|diverg|devian|distance")
_MIN_WORDS = {
    *("bpb", "bpc", "brier", "cer", "cost", "costs", "duration", "ece", "eer", "elapsed", "err"),
    *("errors", "errs", "fid", "fnr", "fpr", "hours", "kid", "kl", "kld", "lpips", "mae", "mape"),
    *("minutes", "mpjpe", "ms", "mse", "msle", "nll", "nrmse", "penalty", "ppl", "rmse"),
    *("rmsle", "sec", "seconds", "secs", "smape", "ter", "time", "wape", "wer"),
}
_MAX_PARTS = re.compile(r"^acc|accuracy|precision|recall|score|reward|similarity|throughput|f1")
_MAX_WORDS = {
    *("ap", "auc", "auprc", "auroc", "bleu", "chrf", "dice", "elbo", "em", "f2", "fbeta", "iou"),
    *("jaccard", "kappa", "likelihood", "map", "mcc", "meteor", "miou", "mrr", "ndcg", "npv"),
    *("ppv", "prauc", "profit", "psnr", "r2", "return", "returns", "revenue", "rocauc", "rouge"),
    *("sensitivity", "sharpe", "specificity", "ssim", "tnr", "tpr"),
}
# What the parts above mean, written out.
_WHOLE = {
    *("accuracy", "divergence", "entropy", "error", "latency", "loss", "perplexity", "precision"),
    *("recall", "regret", "reward", "score", "similarity", "throughput"),
}
# Two words are one misspelt word from this similarity on: `gap` is no `map`, `los` is `loss`.
_MISSPELT = 0.85
# The unit of time of a rate, as in `images_per_second`.
_RATE = re.compile(r"per[^0-9A-Za-z]*(?:s|sec|secs|seconds?|minute|hour)(?![a-z])", re.IGNORECASE)


def direction_of_name(metric: str) -> str | None:
    """Return `max` or `min` if the name of a metric tells the direction; None if it does not.

    Example:
        >>> [direction_of_name(name) for name in ("val_accuracy", "mAP@0.5", "F1Score", "roc_auc")]
        ['max', 'max', 'max', 'max']
        >>> [direction_of_name(name) for name in ("logloss", "valLoss", "val/loss", "wer")]
        ['min', 'min', 'min', 'min']
        >>> [direction_of_name(name) for name in ("x", "value", "lossless_ratio", "score_error")]
        [None, None, None, 'min']
    """
    words = _words(_RATE.sub("", metric))
    if any(_MIN_PARTS.search(word) or word in _MIN_WORDS for word in words):
        return "min"
    return "max" if any(_MAX_PARTS.search(w) or w in _MAX_WORDS for w in words) else None


def likely_name(metric: str) -> str | None:
    """Return a name that was probably meant, if the name of a metric has a misspelt word.

    Example:
        >>> [likely_name(name) for name in ("acuracy", "val_los", "prcision@5", "gap")]
        ['accuracy', 'val_loss', 'precision@5', None]
    """
    known = sorted(_WHOLE | _MIN_WORDS | _MAX_WORDS)

    def corrected(word: "re.Match[str]") -> str:
        return next(iter(difflib.get_close_matches(word[0], known, 1, _MISSPELT)), word[0])

    name = re.sub("[a-z]{3,}", corrected, metric)
    return name if name != metric else None


def _words(name: str) -> set[str]:
    """Return the words of a name in lower case, with and without the digits at their ends."""
    # `valLoss` is two words, and `mAP`, between separators, is one.
    parts = re.split(r"[^0-9A-Za-z]+", name)
    camel = re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*", name)
    words = {word.lower() for word in (*parts, *camel) if len(word) > 1}
    return words | {word.rstrip("0123456789") for word in words}
