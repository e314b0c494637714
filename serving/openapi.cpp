#include "serving/openapi.h"

namespace expertflow {
namespace {

constexpr std::string_view kOpenApi = R"json({
 "openapi": "3.1.0",
 "info": {
  "title": "ExpertFlow",
  "version": "1",
  "description": "OpenAI-compatible; docs/serving.md says what each field does"
 },
 "paths": {
  "/v1/completions": {
   "post": {
    "summary": "complete text",
    "responses": {
     "200": {"$ref": "#/components/responses/Answer"},
     "default": {"$ref": "#/components/responses/Error"}
    },
    "requestBody": {
     "required": true,
     "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Completion"}}}
    }
   }
  },
  "/v1/chat/completions": {
   "post": {
    "summary": "answer a chat",
    "responses": {
     "200": {"$ref": "#/components/responses/Answer"},
     "default": {"$ref": "#/components/responses/Error"}
    },
    "requestBody": {
     "required": true,
     "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Chat"}}}
    }
   }
  },
  "/tokenize": {
   "post": {
    "summary": "text or a chat to token ids",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    },
    "requestBody": {
     "required": true,
     "content": {
      "application/json": {
       "schema": {
        "type": "object",
        "properties": {
         "prompt": {"type": ["string", "null"]},
         "messages": {"type": ["array", "null"], "items": {"type": "object"}},
         "add_special_tokens": {"type": ["boolean", "null"]},
         "return_token_strs": {"type": ["boolean", "null"]}
        }
       }
      }
     }
    }
   }
  },
  "/detokenize": {
   "post": {
    "summary": "token ids to text",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    },
    "requestBody": {
     "required": true,
     "content": {
      "application/json": {
       "schema": {
        "type": "object",
        "properties": {"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
        "required": ["tokens"]
       }
      }
     }
    }
   }
  },
  "/v1/models": {
   "get": {
    "summary": "the model",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    }
   }
  },
  "/v1/models/{model}": {
   "get": {
    "summary": "the model",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    },
    "parameters": [
     {"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}
    ]
   }
  },
  "/health": {
   "get": {
    "summary": "whether requests are taken",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    },
    "security": []
   }
  },
  "/health/live": {
   "get": {
    "summary": "whether the server runs",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    },
    "security": []
   }
  },
  "/metrics": {
   "get": {
    "summary": "for Prometheus",
    "responses": {
     "200": {"$ref": "#/components/responses/Text"},
     "default": {"$ref": "#/components/responses/Error"}
    }
   }
  },
  "/v1/expertflow/status": {
   "get": {
    "summary": "processes, caches, queue",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    }
   }
  },
  "/v1/expertflow/experts": {
   "get": {
    "summary": "what each expert was used for, and where it is",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    }
   }
  },
  "/v1/expertflow/config": {
   "get": {
    "summary": "options and what may change",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    }
   },
   "patch": {
    "summary": "change what may change",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    },
    "requestBody": {
     "required": true,
     "content": {
      "application/json": {
       "schema": {
        "type": "object",
        "properties": {
         "rate_limit": {"type": ["integer", "null"], "minimum": 0, "maximum": 1000000000},
         "reload_keys": {"type": ["boolean", "null"]},
         "reload_certificate": {"type": ["boolean", "null"]}
        }
       }
      }
     }
    }
   }
  },
  "/openapi.json": {
   "get": {
    "summary": "this description",
    "responses": {
     "200": {"$ref": "#/components/responses/Object"},
     "default": {"$ref": "#/components/responses/Error"}
    }
   }
  }
 },
 "components": {
  "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
  "schemas": {
   "Completion": {
    "allOf": [
     {"$ref": "#/components/schemas/Common"},
     {
      "type": "object",
      "properties": {
       "prompt": {
        "anyOf": [
         {"type": "string"},
         {"type": "array", "items": {"type": "integer", "minimum": 0}},
         {
          "type": "array",
          "items": {
           "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "integer", "minimum": 0}}
           ]
          }
         }
        ]
       },
       "echo": {"type": ["boolean", "null"]},
       "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20}
      },
      "required": ["prompt"]
     }
    ]
   },
   "Chat": {
    "allOf": [
     {"$ref": "#/components/schemas/Common"},
     {
      "type": "object",
      "properties": {
       "messages": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "properties": {"role": {"type": "string"}}, "required": ["role"]}
       },
       "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 1073741824},
       "logprobs": {"type": ["boolean", "null"]},
       "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
       "tools": {"type": ["array", "null"], "items": {"type": "object"}, "maxItems": 128},
       "tool_choice": {},
       "parallel_tool_calls": {"type": ["boolean", "null"]},
       "chat_template_kwargs": {"type": ["object", "null"]}
      },
      "required": ["messages"]
     }
    ]
   },
   "Answer": {
    "type": "object",
    "properties": {
     "id": {"type": "string"},
     "object": {"type": "string"},
     "created": {"type": "integer"},
     "model": {"type": "string"},
     "choices": {"type": "array", "items": {"type": "object"}},
     "usage": {"type": "object"}
    },
    "required": ["id", "object", "created", "model", "choices"]
   },
   "Error": {
    "type": "object",
    "properties": {
     "error": {
      "type": "object",
      "properties": {
       "message": {"type": "string"},
       "type": {"type": "string"},
       "param": {"type": ["string", "null"]},
       "code": {"type": ["string", "null"]}
      },
      "required": ["message", "type", "param", "code"]
     }
    },
    "required": ["error"]
   },
   "Common": {
    "type": "object",
    "properties": {
     "model": {"type": ["string", "null"]},
     "max_tokens": {"type": ["integer", "null"], "minimum": 0, "maximum": 1073741824},
     "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
     "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
     "top_k": {"type": ["integer", "null"], "minimum": -1, "maximum": 1000000},
     "min_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
     "repetition_penalty": {"type": ["number", "null"], "minimum": 0.01, "maximum": 100},
     "frequency_penalty": {"type": ["number", "null"], "minimum": -2, "maximum": 2},
     "presence_penalty": {"type": ["number", "null"], "minimum": -2, "maximum": 2},
     "logit_bias": {
      "type": ["object", "null"],
      "additionalProperties": {"type": ["number", "null"], "minimum": -100, "maximum": 100}
     },
     "seed": {"type": ["integer", "null"]},
     "stop": {
      "anyOf": [
       {"type": "string"},
       {"type": "array", "items": {"type": "string"}, "maxItems": 16},
       {"type": "null"}
      ]
     },
     "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 128},
     "stream": {"type": ["boolean", "null"]},
     "stream_options": {"type": ["object", "null"], "properties": {"include_usage": {"type": ["boolean", "null"]}}},
     "ignore_eos": {"type": ["boolean", "null"]},
     "priority": {"type": ["integer", "null"], "minimum": -1000, "maximum": 1000},
     "response_format": {
      "type": ["object", "null"],
      "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}},
      "required": ["type"]
     }
    }
   }
  },
  "responses": {
   "Answer": {
    "description": "the answer",
    "content": {
     "application/json": {"schema": {"$ref": "#/components/schemas/Answer"}},
     "text/event-stream": {"schema": {"type": "string"}}
    }
   },
   "Error": {
    "description": "an error",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
   },
   "Object": {
    "description": "the answer",
    "content": {"application/json": {"schema": {"type": "object"}}}
   },
   "Text": {"description": "metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
  }
 },
 "security": [{"key": []}]
})json";

}  // namespace

std::string_view OpenApiJson() {
  return kOpenApi;
}

}  // namespace expertflow
