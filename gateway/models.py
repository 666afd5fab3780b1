"""/v1/models."""

from fastapi import APIRouter
from starlette.requests import Request

from gateway.answers import ModelCard, ModelList, responses
from gateway.model import ServedModel
from gateway.state import gateway_of

router = APIRouter(tags=["models"])


@router.get("/v1/models", summary="List the served names", response_model=ModelList, responses=responses(None, 401, 503))
async def list_models(request: Request) -> ModelList:
    """Every name that requests may use; all mean the one served model."""
    model = gateway_of(request).model()
    return ModelList(object="list", data=[_card(name, model) for name in model.names])


@router.get("/v1/models/{model_id:path}", summary="One name", response_model=ModelCard, responses=responses(None, 401, 404, 503))
async def get_model(request: Request, model_id: str) -> ModelCard:
    """404 unless it is served."""
    model = gateway_of(request).model()
    model.check_name(model_id)
    return _card(model_id, model)


def _card(name: str, model: ServedModel) -> ModelCard:
    return ModelCard(
        id=name,
        object="model",
        created=model.created_s,
        owned_by="drumline",
        root=model.info.name,
        max_model_len=model.info.max_model_len,
    )
