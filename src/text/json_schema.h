/* json_schema.h - JSON Schema as a grammar: whatever is written under it parses and validates.
 *
 * The grammar may accept less than the schema does, never more. Where less:
 *   - properties come in the order of the schema; those not required may be left out. Names in "required" that
 *     "properties" does not have come behind, if additional properties are allowed
 *   - no additionalProperties beside "properties" means none (a model invents names where it can); objects without
 *     "properties" may have any. Additional names are not those of "properties", and written without escapes
 *   - no "items" behind "prefixItems" means that there are no more
 *   - white space: JSON may stand in one line or indented: one space, or a line feed and at most TD_JSON_SCHEMA_INDENT
 *     spaces or tabs, inside brackets and behind commas; at most one space behind a colon; none elsewhere. So a model
 *     cannot go on writing it
 *   - numbers have at most 16 digits before and behind the point, and two of exponent; with bounds, no exponent
 *   - oneOf is read as anyOf: a value that two branches accept can come out
 *   - a schema without "type" but with keywords of one type describes values of that type
 *
 * Keywords: type (a name or a list), enum, const, properties, required, additionalProperties, minProperties (0 or 1, or
 * with maxProperties where there are no "properties"), items, prefixItems, minItems, maxItems, minLength, maxLength,
 * pattern, format, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, anyOf, oneOf, allOf, $ref into
 * the same schema (recursion too), $defs, definitions, nullable; true and false. Everything that OpenAI's strict mode
 * has. pattern   ECMA's: . \d \w \s and their opposites, classes, groups, | * + ? {m,n}, ^ and $ at its ends. Not: look
 *             around, back references, \b, \p. With a length only where it is one repeated class
 *   format    date-time, date, time, duration, uuid, email, hostname, ipv4, ipv6, uri. Those that only name the size
 *             of a number or the use of a string (int32, int64, float, double, password, binary, byte) say nothing
 *   multipleOf  of up to TD_JSON_SCHEMA_MAX_MULTIPLE units of the last decimal it has
 * Annotations (title, description, default, examples, $comment, $schema, $id, deprecated, readOnly, writeOnly,
 * discriminator, x-...) say nothing. Any other keyword is an error that names it and its place. */
#ifndef TD_TEXT_JSON_SCHEMA_H
#define TD_TEXT_JSON_SCHEMA_H

#include <jansson.h>

#include "text/grammar.h"

#define TD_JSON_SCHEMA_INDENT 40
#define TD_JSON_SCHEMA_MAX_MULTIPLE 1000
#define TD_JSON_SCHEMA_MAX_WAYS 256 /* alternatives of a schema, its allOf and anyOf multiplied out */

/* schema is only read here. opt may be NULL.
 * Errors name the place as a JSON pointer, "schema /properties/age/minimum: ...". TD_E_UNSUPPORTED: a keyword or a
 * combination that is not above; TD_E_FORMAT: not a schema, or one that nothing satisfies; TD_E_LIMIT; TD_E_NOMEM. */
td_status td_grammar_from_json_schema(td_grammar **out, const td_token_trie *trie, const json_t *schema,
                                      const td_grammar_options *opt, td_error *err) TD_MUST_CHECK;

/* Any JSON object: what response_format json_object asks for. */
td_status td_grammar_any_json_object(td_grammar **out, const td_token_trie *trie, const td_grammar_options *opt,
                                     td_error *err) TD_MUST_CHECK;

#endif
