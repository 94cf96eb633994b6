/* sanitized.h - TD_SANITIZED: 1 in a build with a sanitizer, else 0.
 *
 * A sanitizer looks for bad accesses and races, not for inexact text, and is ten times slower. Where a test sweeps over
 * many values of one kind (prompts, splits, depths), every third of them goes through the same code; the release build
 * keeps them all. Cases of another kind (a format, a level of kernels, a failed allocation) are never left out. */
#ifndef TD_TESTS_SANITIZED_H
#define TD_TESTS_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TD_SANITIZED 1
#endif
#endif
#ifndef TD_SANITIZED
#define TD_SANITIZED 0
#endif

#endif
