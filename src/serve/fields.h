/* fields.h - members of a request, read with a type and a range, or refused with the member's path.
 *
 * A member that is absent or null leaves *out as it was: the caller puts the default there first. */
#ifndef TD_SERVE_FIELDS_H
#define TD_SERVE_FIELDS_H

#include <jansson.h>

#include "serve/fault.h"

typedef struct td_fields {
    const json_t *object;
    const char *path; /* "" for the request itself, "stream_options" for that member; a full "messages[2]" */
    td_fault *fault;  /* filled by what fails */
} td_fields;

/* The member, or NULL when it is absent or null. */
json_t *td_field(const td_fields *f, const char *name);

td_status td_field_bool(const td_fields *f, const char *name, bool *out) TD_MUST_CHECK;
/* A whole number (3 and 3.0) within [lo, hi]. */
td_status td_field_int(const td_fields *f, const char *name, int64_t lo, int64_t hi, int64_t *out) TD_MUST_CHECK;
td_status td_field_u32(const td_fields *f, const char *name, uint32_t lo, uint32_t hi, uint32_t *out) TD_MUST_CHECK;
td_status td_field_real(const td_fields *f, const char *name, double lo, double hi, double *out) TD_MUST_CHECK;
td_status td_field_float(const td_fields *f, const char *name, double lo, double hi, float *out) TD_MUST_CHECK;
/* Borrowed from the object, NUL-terminated. */
td_status td_field_text(const td_fields *f, const char *name, const char **out) TD_MUST_CHECK;
td_status td_field_object(const td_fields *f, const char *name, json_t **out) TD_MUST_CHECK;
td_status td_field_array(const td_fields *f, const char *name, json_t **out) TD_MUST_CHECK;

/* A fault about the member `name` ("" or NULL: the object itself): "'path.name' ...". */
td_status td_field_fail(const td_fields *f, const char *name, const char *code, const char *fmt, ...) TD_PRINTF(4, 5);
/* 400 invalid_type: "'path.name' is a number, expected a string". */
td_status td_field_type(const td_fields *f, const char *name, const json_t *found, const char *expected);
/* 400 missing_required_parameter. */
td_status td_field_missing(const td_fields *f, const char *name);

/* "an object", "a list", "a string", "a number", "a boolean", "null". */
const char *td_json_kind(const json_t *v);

#endif
