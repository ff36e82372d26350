// Tenure's default lifecycle policy once more, in C: check the arguments, run the one
// statement, say what its outcome means. The rules are those of guest/rules, and the same
// scenarios hold it to them.
//
// The header is made of wit/ by wit-bindgen: see README.md. Arguments belong to the callee,
// which frees them; what is returned, texts of errors too, is freed by the bindings once the
// host has read it, and so has to come from malloc.

#include <string.h>

#include "session_policy.h"

typedef session_policy_string_t string_t;
typedef tenure_registry_types_store_error_t store_error_t;
typedef tenure_registry_types_registry_error_t registry_error_t;

#define INVALID TENURE_REGISTRY_TYPES_REGISTRY_ERROR_INVALID_ARGUMENT
#define CONTENTION TENURE_REGISTRY_TYPES_REGISTRY_ERROR_CONTENTION
#define STORE TENURE_REGISTRY_TYPES_REGISTRY_ERROR_STORE

#define MAX_OWNER_CHARS 64
#define MAX_TTL_MS (24ULL * 60 * 60 * 1000)

// Unicode's White_Space.
static bool is_white_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

// Unicode's general category Cc.
static bool is_control(uint32_t c) { return c < 0x20 || (c >= 0x7f && c <= 0x9f); }

// Takes one character off the front of a text, which is not empty. The host passes
// well-formed UTF-8 only.
static uint32_t next_char(const uint8_t **text) {
  uint8_t first = *(*text)++;
  if (first < 0x80) {
    return first;
  }
  int more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
  uint32_t c = first & (0x3f >> more);
  while (more-- > 0) {
    c = c << 6 | (*(*text)++ & 0x3f);
  }
  return c;
}

// Each check returns the rule that is broken, or NULL.

static const char *check_owner(const string_t *owner) {
  size_t chars = 0;
  bool blank = true, control = false;
  const uint8_t *text = owner->ptr, *end = text + owner->len;
  while (text < end) {
    uint32_t c = next_char(&text);
    if (++chars > MAX_OWNER_CHARS) {
      return "owner-id must have at most 64 characters";
    }
    blank = blank && is_white_space(c);
    control = control || is_control(c);
  }
  if (blank) {
    return "owner-id must not be blank";
  }
  return control ? "owner-id must not contain control characters" : NULL;
}

static const char *check_ttl(uint64_t ttl_ms) {
  if (ttl_ms == 0) {
    return "ttl-ms must be at least 1";
  }
  return ttl_ms > MAX_TTL_MS ? "ttl-ms must be at most 86400000 (24 hours)" : NULL;
}

static bool is_hex_digit(uint8_t byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') ||
         (byte >= 'A' && byte <= 'F');
}

static const char *check_session_id(const string_t *id) {
  bool is_uuid = id->len == 36;
  for (size_t at = 0; is_uuid && at < 36; at++) {
    bool hyphen = at == 8 || at == 13 || at == 18 || at == 23;
    is_uuid = hyphen ? id->ptr[at] == '-' : is_hex_digit(id->ptr[at]);
  }
  return is_uuid ? NULL : "session-id must be a UUID of 36 characters";
}

static bool fail(registry_error_t *err, uint8_t tag, const char *text) {
  err->tag = tag;
  session_policy_string_dup(&err->val.store, text);
  return false;
}

// A fault stays that fault. Its text is passed on, not copied.
static bool fault(registry_error_t *err, const store_error_t *fault) {
  bool contention = fault->tag == TENURE_REGISTRY_TYPES_STORE_ERROR_CONTENTION;
  err->tag = contention ? CONTENTION : STORE;
  err->val.store = contention ? fault->val.contention : fault->val.rejected;
  return false;
}

bool exports_tenure_registry_session_registry_open_session(string_t *owner, uint64_t ttl_ms,
                                                           string_t *ret,
                                                           registry_error_t *err) {
  store_error_t met;
  const char *broken = check_owner(owner);
  if (broken == NULL) {
    broken = check_ttl(ttl_ms);
  }
  bool ok = broken == NULL ? tenure_registry_statements_open_session(owner, ttl_ms, ret, &met) ||
                                 fault(err, &met)
                           : fail(err, INVALID, broken);
  session_policy_string_free(owner);
  return ok;
}

bool exports_tenure_registry_session_registry_heartbeat(string_t *session, uint64_t ttl_ms,
                                                        bool *ret, registry_error_t *err) {
  store_error_t met;
  uint32_t rows = 0;
  const char *broken = check_session_id(session);
  if (broken == NULL) {
    broken = check_ttl(ttl_ms);
  }
  bool ok = broken == NULL
                ? tenure_registry_statements_heartbeat(session, ttl_ms, &rows, &met) ||
                      fault(err, &met)
                : fail(err, INVALID, broken);
  session_policy_string_free(session);
  if (ok && rows > 1) {
    return fail(err, STORE, "a heartbeat updated more than one session");
  }
  *ret = rows == 1;
  return ok;
}

bool exports_tenure_registry_session_registry_close_session(string_t *session, uint32_t *ret,
                                                            registry_error_t *err) {
  store_error_t met;
  const char *broken = check_session_id(session);
  bool ok = broken == NULL ? tenure_registry_statements_close_session(session, ret, &met) ||
                                 fault(err, &met)
                           : fail(err, INVALID, broken);
  session_policy_string_free(session);
  return ok;
}

bool exports_tenure_registry_session_registry_locks_of(string_t *session,
                                                       session_policy_list_string_t *ret,
                                                       registry_error_t *err) {
  store_error_t met;
  const char *broken = check_session_id(session);
  bool ok = broken == NULL ? tenure_registry_statements_locks_of(session, ret, &met) ||
                                 fault(err, &met)
                           : fail(err, INVALID, broken);
  session_policy_string_free(session);
  return ok;
}
