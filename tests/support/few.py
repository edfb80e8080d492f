"""Few sentences to check the parity of an export on, where parity is not what a test is about."""

from s2sent.model.export.options import ExportOptions
from s2sent.model.export.parity import parity_sentences

FEW_SENTENCES = parity_sentences()[:8]
FEW = ExportOptions(sentences=FEW_SENTENCES)
