"""The look at the first rows of every input, before a run writes or deletes anything."""

from collections.abc import Iterable

from s2sent.service.bulk.input.columns import refuse_columns
from s2sent.service.bulk.input.files import InputFile, RowReader
from s2sent.service.bulk.input.formats import NO_KEY
from s2sent.service.bulk.job import InputError, Job

FIRST_ROWS = 100  # of a file that are looked at


def check_first_rows(
    files: Iterable[InputFile], job: Job, *, resume: bool, overwrite: bool
) -> None:
    """Raise InputError for inputs whose beginning shows that the run would stop.

    Where bad rows are kept with their errors no row stops a run. Then only a run that would
    ``overwrite`` an older output is refused, for a file without the keys that the options name. A
    run that is resumed may have left out the first rows when it began.
    """
    for file in files:
        if file.format == "txt":
            refuse_columns(file.name, job.options, names_text_column=job.names_text_column)
        if not resume:
            _check(file, job, overwrite=overwrite)


def _check(file: InputFile, job: Job, *, overwrite: bool) -> None:
    if job.null_errors and not overwrite:
        return
    with RowReader(file, job.options) as reader:
        errors = [row.error for row in reader.rows(FIRST_ROWS)]
    place = f"{file.name}, row 1"
    if errors and all(error and error.startswith(NO_KEY) for error in errors):
        raise InputError(
            f"{place}: {errors[0]}, and so it is in each of the first {len(errors)} rows."
            " Name other keys by --text-column and --id-column."
        )
    if errors and errors[0] and not job.null_errors:
        raise InputError(
            f"{place}: {errors[0]}. Mend the row, or leave its embedding out with --on-error null."
        )
