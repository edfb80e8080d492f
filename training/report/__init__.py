"""The HTML report of an encoder: `encoder_report` from `training.evaluation`'s scores, one file."""
