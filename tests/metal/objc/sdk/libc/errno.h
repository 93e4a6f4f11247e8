#pragma once
#define ETIMEDOUT 60
