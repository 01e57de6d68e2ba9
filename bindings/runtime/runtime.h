// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What every way in shares, C++ programs too: the other rooms' parts, made from what a person wrote.
///
///   1. repository_folder.h: open_repository(place, access): a folder, a pool of RADOS, the address of a provider, or several.
///   2. scheduled_publisher.h: a publisher that publishes when its scheduler says so.

#include "bindings/runtime/repository_folder.h"
#include "bindings/runtime/scheduled_publisher.h"
