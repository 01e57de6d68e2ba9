// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Makes the other rooms' objects from a person's text. The command line, Python and C++ programs share it.
///
///   1. repository_folder.h: open_repository(place, options), for a folder, a RADOS pool, addresses of providers, or
///      memory.
///   2. scheduled_publisher.h: a publisher that publishes when its scheduler says so.
///   3. resume.h: a training run goes on from a stored version.

#include "bindings/runtime/repository_folder.h"
#include "bindings/runtime/resume.h"
#include "bindings/runtime/scheduled_publisher.h"
